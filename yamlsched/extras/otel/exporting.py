"""The provider of the process that executes attempts, as the variables of
OpenTelemetry ask for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

EXPORT_INTERVAL = "OTEL_BSP_SCHEDULE_DELAY"
EXPORT_INTERVAL_MILLISECONDS = 500  # a process that is killed loses what it has not exported
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_logger = logging.getLogger("yamlsched")


class OnceWarningExporter(SpanExporter):
    """An exporter whose first failure is logged, and no other: it is printed among the output of
    handlers.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._has_warned = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                return SpanExportResult.SUCCESS
            reason = "does OTEL_EXPORTER_OTLP_ENDPOINT answer?"
        except Exception as error:
            reason = type(error).__name__
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("spans could not be exported: %s", reason)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()


_configured_pid = 0


def configure() -> None:
    """Set a provider as the variables of OpenTelemetry ask for, unless one is set. Called once in
    each process.
    """
    global _configured_pid
    if _configured_pid == os.getpid():
        return
    _configured_pid = os.getpid()
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if not (names := _exporter_names()):
        return
    # each retry is logged otherwise
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    logging.getLogger("opentelemetry.util.re").addFilter(_without_headers)
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    interval = None if EXPORT_INTERVAL in os.environ else EXPORT_INTERVAL_MILLISECONDS
    for name in names:
        if (create := _exporter_class(name)) is not None:
            exporter = OnceWarningExporter(create())
            provider.add_span_processor(
                BatchSpanProcessor(exporter, schedule_delay_millis=interval)
            )
        else:
            _logger.warning(
                'no spans are exported by "%s": its package is not installed. See'
                " docs/observability.md",
                name,
            )
    trace.set_tracer_provider(provider)


def _without_headers(record: logging.LogRecord) -> bool:
    """Name the variables in OpenTelemetry's warning about invalid headers, which has their values:
    they are secrets.
    """
    record.msg = (
        "OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_TRACES_HEADERS has an invalid header,"
        " which is not sent: write NAME=VALUE, separated by commas, with values that are URL"
        " encoded"
    )
    record.args = ()
    return True


def _resource() -> Resource:
    """Return what the variables say about this service, which is named yamlsched if they do not."""
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if is_named else {"service.name": "yamlsched"})


def _exporter_names() -> list[str]:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    otlp = PROTOCOLS.get((protocol or "http/protobuf").strip(), f"otlp ({protocol})")
    names = [name.strip() for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def _exporter_class(name: str) -> Any:
    entry_point = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    return None if entry_point is None else entry_point.load()


def preload() -> None:
    """Import the exporters that the variables name. What is wrong with one is reported by the
    process that uses it.
    """
    with contextlib.suppress(Exception):
        for name in _exporter_names():
            _exporter_class(name)
