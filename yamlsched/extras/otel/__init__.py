"""Spans of OpenTelemetry: ``send JOB`` for an enqueue, ``process JOB`` for an attempt. See
docs/observability.md.

Nothing of OpenTelemetry is imported unless its variables ask for it, or the application has
imported it. Then ``spans.py`` is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun

LAST_EXPORT_SECONDS = 2.5  # for which a process that exits waits for its export
API = "opentelemetry.trace"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def is_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the variables of OpenTelemetry ask for traces to be exported."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporters:
        return exporters != "none"
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


@cache
def is_installed() -> bool:
    """Return whether the packages of the extra ``otel`` are installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None


@cache
def _exports() -> bool:
    """Return whether processes of this worker export spans: reading the variables for each attempt
    would take longer than a short one.
    """
    return is_requested() and is_installed()


def preload() -> None:
    """Import what the processes of a worker need, if the variables ask for traces: its forks start
    more quickly.
    """
    _exports.cache_clear()
    if _exports():
        _module("spans")
        _module("exporting").preload()


def send(
    job: str, count: int, namespace: str | None, key: str | None
) -> Callable[[Sequence[int | None], BaseException | None], None] | None:
    """Start the span of an enqueue, if tracing is configured. Return what ends it."""
    span: Any = _module("spans").send(job, count, namespace, key) if API in sys.modules else None
    return None if span is None else span.finish


def process(
    run: ClaimedRun, namespace: str, redact: Callable[[str], str]
) -> Callable[[AttemptEnd | None], None] | None:
    """Start the span of an attempt, and make it the current one, if tracing is configured. Return
    what ends it.

    A provider that the handler's module has configured is used, else, if the variables ask for it,
    one of our own.
    """
    if API not in sys.modules and not _exports():
        return None
    configure = _module("exporting").configure if _exports() else lambda: None
    span: Any = _module("spans").process(run, namespace, redact, configure)
    return None if span is None else span.finish


def context() -> str | None:
    """Return the trace context of the current span; None outside of a valid span."""
    return _module("spans").current_context() if API in sys.modules else None


def flush() -> None:
    """Export all spans: this process is about to exit."""
    if API in sys.modules:
        _module("spans").flush_all(LAST_EXPORT_SECONDS)


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
