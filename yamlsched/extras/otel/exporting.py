"""Exporting spans from the process that executes attempts, without a thread beside the handler.

OpenTelemetry's own processor for batches has a thread, which a fork does not copy and which makes forks of handlers and
commands unsafe. This one exports between attempts, and when the process is idle or exits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from yamlsched.extras.otel import BATCH_SPANS

MAX_BUFFERED_SPANS = 2_048
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_logger = logging.getLogger("yamlsched")


class Buffer(SpanProcessor):
    """Keeps ended spans until ``flush``. Those of a handler's threads are kept too."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._exporters: list[SpanExporter] | None = None  # created with the first export: importing them takes time
        self._has_warned = False
        self._lock = threading.Lock()
        self._spans: list[ReadableSpan] = []
        self._dropped = 0
        self._export: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def count(self) -> int:
        return len(self._spans)

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled or os.getpid() != self._pid:
            return  # a process that a handler forked has no one to export its spans
        with self._lock:
            if len(self._spans) < MAX_BUFFERED_SPANS:
                self._spans.append(span)
            else:
                self._dropped += 1

    def flush(self, seconds: float) -> bool:
        """Export the spans, and wait at most ``seconds`` for it; return whether that has ended.

        The export is a thread, which is left behind if it takes longer: the timeout of a socket applies to each read.
        As long as it lasts, no other one is started, and it is waited for only once.
        """
        deadline = time.monotonic() + seconds
        if self._export is not None and self._export.is_alive():
            return False
        with self._lock:
            spans, self._spans, dropped, self._dropped = self._spans, [], self._dropped, 0
        if dropped:
            self._warn(f"{dropped} spans were dropped: exporting is too slow")
        if not spans:
            return True
        self._export = threading.Thread(target=self._export_all, args=(spans,), daemon=True)
        self._export.start()
        self._export.join(max(0.0, deadline - time.monotonic()))
        return not self._export.is_alive()

    def join(self, seconds: float) -> None:
        """Wait at most ``seconds`` for an export that has not ended."""
        if self._export is not None:
            self._export.join(seconds)

    def _export_all(self, spans: list[ReadableSpan]) -> None:
        try:
            if self._exporters is None:
                self._exporters = [exporter for name in self._names if (exporter := self._create(name)) is not None]
            for start in range(0, len(spans), BATCH_SPANS):
                for exporter in self._exporters:
                    if exporter.export(spans[start : start + BATCH_SPANS]) is not SpanExportResult.SUCCESS:
                        self._warn("spans could not be exported: does OTEL_EXPORTER_OTLP_ENDPOINT answer?")
        except Exception as error:
            self._warn(f"spans could not be exported: {type(error).__name__}")

    def _create(self, name: str) -> SpanExporter | None:
        create = _exporter_class(name)
        if create is None:
            self._warn(f'no spans are exported by "{name}": its package is not installed. See docs/observability.md')
            return None
        return create()  # type: ignore[no-any-return]

    def _warn(self, text: str) -> None:
        if not self._has_warned:  # once for each process: it is printed among the output of handlers
            self._has_warned = True
            _logger.warning("%s", text)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self.flush(timeout_millis / 1000)


_buffer: Buffer | None = None
_configured_pid = 0


def configure() -> None:
    """Set a provider as the variables of OpenTelemetry ask for, unless one is set. Called once in each process."""
    global _buffer, _configured_pid
    if _configured_pid == os.getpid():
        return
    _configured_pid = os.getpid()
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if not (names := _exporter_names()):
        return
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # each retry is logged otherwise
    logging.getLogger("opentelemetry.util.re").addFilter(_without_headers)
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    _buffer = Buffer(names)
    provider.add_span_processor(_buffer)
    trace.set_tracer_provider(provider)


def _without_headers(record: logging.LogRecord) -> bool:
    """Name the variables in OpenTelemetry's warning about invalid headers, which has their values: they are secrets."""
    record.msg = (
        "OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_TRACES_HEADERS has an invalid header, which is not sent: "
        "write NAME=VALUE, separated by commas, with values that are URL encoded"
    )
    record.args = ()
    return True


def _resource() -> Resource:
    """Return what the variables say about this service, which is named yamlsched if they do not."""
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if is_named else {"service.name": "yamlsched"})


def _exporter_names() -> list[str]:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    otlp = PROTOCOLS.get((protocol or "http/protobuf").strip(), f"otlp ({protocol})")
    names = [name.strip() for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def _exporter_class(name: str) -> Any:
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    return None if found is None else found.load()


def preload() -> None:
    """Import the exporters that the variables name. What is wrong with one is reported by the process that uses it."""
    with contextlib.suppress(Exception):
        for name in _exporter_names():
            _exporter_class(name)


def unexported() -> int:
    """Return how many spans wait for an export."""
    return 0 if _buffer is None else _buffer.count


def flush(seconds: float) -> None:
    """Export what waits, and wait at most ``seconds`` for it."""
    if _buffer is not None:
        _buffer.flush(seconds)


def has_provider() -> bool:
    """Return whether the provider is ours."""
    return _buffer is not None


def finish(seconds: float) -> None:
    """Export all that waits, after an export that has not ended; wait at most ``seconds`` for both."""
    if _buffer is not None:
        deadline = time.monotonic() + seconds
        _buffer.join(seconds)
        _buffer.flush(max(0.0, deadline - time.monotonic()))
