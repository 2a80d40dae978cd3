"""Spans of OpenTelemetry: ``send JOB`` for an enqueue, ``process JOB`` for an attempt. See
docs/observability.md.

Nothing of OpenTelemetry is imported unless its variables ask for it, or the application has
imported it. Errors of OpenTelemetry are logged and change no run.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from yamlsched import __version__
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, one_line
from yamlsched.timetable.times import rfc3339

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SYSTEM = "yamlsched"
LAST_EXPORT_SECONDS = 2.5  # for which a process that exits waits for its export
PROPAGATE = "YAMLSCHED_TRACE_PROPAGATE"
API = "opentelemetry.trace"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_logger = logging.getLogger("yamlsched")


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


def preload() -> None:
    """Import what a traced process needs, if the variables ask for traces: its forks start more
    quickly.
    """
    if is_requested() and is_installed():
        from yamlsched.extras.otel import exporting

        exporting.preload()


def _tracer() -> Tracer | None:
    """Return a tracer of the provider that is configured; None if there is none."""
    api: Any = sys.modules.get(API)
    if not hasattr(api, "get_tracer_provider"):  # another thread may be importing it
        return None
    provider = api.get_tracer_provider()
    return (
        None
        if isinstance(provider, api.ProxyTracerProvider)
        else provider.get_tracer(SYSTEM, __version__)
    )


# -- send ------------------------------------------------------------------------------------------


class Sending:
    """The span of an enqueue. ``context`` is the trace context that the runs keep; None: none is
    kept.
    """

    def __init__(self, span: Span | None = None, context: str | None = None) -> None:
        self._span, self.context = span, context

    def contexts(self, count: int) -> list[str] | None:
        """Return ``context`` for each of ``count`` runs."""
        return None if self.context is None else [self.context] * count

    def note(self, run_ids: list[int | None]) -> None:
        """Note which runs were created, or existed."""
        if self._span is not None and len(run_ids) == 1 and run_ids[0] is not None:
            self._span.set_attribute("messaging.message.id", str(run_ids[0]))


@contextmanager
def send(
    job: str, count: int, namespace: str | None = None, key: str | None = None
) -> Iterator[Sending]:
    """Be in a span while ``count`` runs of ``job`` are enqueued, if tracing is configured."""
    tracer = _tracer()
    if tracer is None:
        yield Sending()
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode

    attributes: dict[str, Any] = _attributes("send", job)
    attributes |= {} if namespace is None else {"yamlsched.namespace": namespace}
    attributes |= {"messaging.batch.message_count": count} if count != 1 else {}
    attributes |= {"yamlsched.key": key} if key is not None else {}
    with tracer.start_as_current_span(
        f"send {job}",
        kind=SpanKind.PRODUCER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield Sending(span, current_context() if os.environ.get(PROPAGATE) == "1" else None)
        except BaseException as error:  # whose text may contain a payload
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise


def current_context() -> str | None:
    """Return the trace context of the current span, as runs keep it; None outside of a
    valid span.
    """
    if API not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return " ".join(filter(None, (carrier.get("traceparent"), carrier.get("tracestate")))) or None


# -- process ---------------------------------------------------------------------------------------


class Attempting:
    """The span of an attempt, which is the current one until ``finish``."""

    def __init__(
        self, tracer: Tracer, run: ClaimedRun, namespace: str, redact: Callable[[str], str]
    ) -> None:
        from opentelemetry.context import attach
        from opentelemetry.trace import Link, SpanKind, get_current_span, set_span_in_context

        self._run, self._redact = run, redact
        sent = _extract(run.trace_context)
        creation = get_current_span(sent).get_span_context() if sent is not None else None
        # who may enqueue writes it, and so could join any trace, or have the span not sampled: a
        # link cannot
        parent = sent if os.environ.get(PROPAGATE) == "1" else None
        attributes = {
            **_attributes("process", run.job_type),
            "messaging.message.id": str(run.id),
            "yamlsched.namespace": namespace,
            "yamlsched.key": run.key,
            "yamlsched.scheduled_for": run.scheduled_for and _rfc3339(run.scheduled_for),
            "yamlsched.attempt": run.attempt,
            "yamlsched.max_attempts": run.max_attempts,
        }
        self._span = tracer.start_span(
            f"process {run.job_type}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=[Link(creation)] if creation is not None and creation.is_valid else None,
            attributes={name: value for name, value in attributes.items() if value is not None},
        )
        self._token = attach(set_span_in_context(self._span))

    def finish(self, end: AttemptEnd | None) -> None:
        """End the span. ``end`` None: the handler returned nothing."""
        from opentelemetry.context import detach
        from opentelemetry.trace import Status, StatusCode

        try:
            span = self._span
            span.set_attribute("yamlsched.outcome", _outcome(self._run, end))
            if end is not None and end.is_failure:
                text, error_type = (
                    one_line(self._redact(end.error)),
                    one_line(end.error_type, 200) or "Error",
                )
                span.set_attribute("error.type", error_type)
                span.set_status(Status(StatusCode.ERROR, text))
                event = {"exception.type": error_type, "exception.message": text}
                if end.stack:
                    event["exception.stacktrace"] = self._redact(end.stack)
                span.add_event("exception", event)
            detach(self._token)
            span.end()
        except Exception:
            _logger.exception("the span of run %s could not be ended", self._run.id)


def process(
    run: ClaimedRun, namespace: str, redact: Callable[[str], str], may_configure: bool
) -> Attempting | None:
    """Start the span of an attempt, and make it the current one; None if tracing is not configured.

    It is called where the handler is: in the process, and in the task, that executes it. The
    handler's module has been imported by then: a provider that it has configured is used, else, if
    ``may_configure``, one of our own. That is what ``is_requested`` has returned, once for many
    attempts.
    """
    if API not in sys.modules and not may_configure:
        return None
    try:
        if may_configure and is_installed():
            from yamlsched.extras.otel.exporting import configure

            configure()
        tracer = _tracer()
        return None if tracer is None else Attempting(tracer, run, namespace, redact)
    except Exception:
        _logger.exception("no span of run %s could be started", run.id)
        return None


def flush_all(seconds: float) -> None:
    """Export all spans, and wait at most ``seconds`` for it: this process is about to exit."""
    api: Any = sys.modules.get(API)
    if (force_flush := getattr(api and api.get_tracer_provider(), "force_flush", None)) is not None:
        thread = threading.Thread(
            target=_quietly, args=(force_flush, int(seconds * 1000)), daemon=True
        )
        thread.start()
        thread.join(seconds)


def _quietly(force_flush: Callable[[int], object], milliseconds: int) -> None:
    try:
        force_flush(milliseconds)
    except Exception as error:
        _logger.warning("spans could not be exported: %s", type(error).__name__)


def environment(run: ClaimedRun) -> dict[str, str]:
    """Return the variables that name the trace of a program: that of the attempt's span, else that
    of the run.
    """
    context = current_context() or run.trace_context
    if not context:
        return {}
    parent, _, state = context.partition(" ")
    return {"TRACEPARENT": parent, **({"TRACESTATE": state} if state else {})}


def _extract(trace_context: str | None) -> Any:
    if not trace_context:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent, _, state = trace_context.partition(" ")
    return TraceContextTextMapPropagator().extract({"traceparent": parent, "tracestate": state})


def _attributes(operation: str, job: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": job,
    }


def _rfc3339(slot: str) -> str:
    return rfc3339(datetime.fromisoformat(slot), "seconds")


def _outcome(run: ClaimedRun, end: AttemptEnd | None) -> str:
    """Return how the attempt ended, as far as its own process knows: its worker may have stopped
    it.
    """
    if end is None or end.is_success:
        return "succeeded"
    if end.kind in (EndKind.SNOOZED, EndKind.RELEASED, EndKind.SESSION_LOST):
        return end.kind.value
    return "dead" if end.kind is EndKind.DISCARDED or run.attempt >= run.max_attempts else "failed"
