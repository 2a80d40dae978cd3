"""The spans, once OpenTelemetry is to be used. Its errors are logged and change no run."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from yamlsched import __version__
from yamlsched.runs.enqueue import PROPAGATE
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, one_line
from yamlsched.timetable.times import rfc3339

SYSTEM = "yamlsched"
_logger = logging.getLogger("yamlsched")


def _tracer() -> Tracer | None:
    """Return a tracer of the provider that is configured; None if there is none."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    return provider.get_tracer(SYSTEM, __version__)


class Sending:
    """The span of an enqueue, which is the current one until ``finish``."""

    def __init__(
        self, tracer: Tracer, job: str, count: int, namespace: str | None, key: str | None
    ) -> None:
        attributes: dict[str, Any] = _attributes("send", job)
        attributes |= {} if namespace is None else {"yamlsched.namespace": namespace}
        attributes |= {"messaging.batch.message_count": count} if count != 1 else {}
        attributes |= {"yamlsched.key": key} if key is not None else {}
        self._span = tracer.start_span(
            f"send {job}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
        )
        self._token = attach(trace.set_span_in_context(self._span))

    def finish(self, run_ids: Sequence[int | None], error: BaseException | None) -> None:
        """End the span, with the run that was created, or existed. The text of ``error`` may
        contain a payload.
        """
        if len(run_ids) == 1 and run_ids[0] is not None:
            self._span.set_attribute("messaging.message.id", str(run_ids[0]))
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        detach(self._token)
        self._span.end()


def send(job: str, count: int, namespace: str | None, key: str | None) -> Sending | None:
    """Start the span of an enqueue; None if tracing is not configured."""
    tracer = _tracer()
    return None if tracer is None else Sending(tracer, job, count, namespace, key)


def current_context() -> str | None:
    """Return the trace context of the current span, as runs keep it; None outside of a
    valid span.
    """
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return " ".join(filter(None, (carrier.get("traceparent"), carrier.get("tracestate")))) or None


class Attempting:
    """The span of an attempt, which is the current one until ``finish``."""

    def __init__(
        self, tracer: Tracer, run: ClaimedRun, namespace: str, redact: Callable[[str], str]
    ) -> None:
        self._run, self._redact = run, redact
        sent = _extract(run.trace_context)
        creation = trace.get_current_span(sent).get_span_context() if sent is not None else None
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
        self._token = attach(trace.set_span_in_context(self._span))

    def finish(self, end: AttemptEnd | None) -> None:
        """End the span. ``end`` None: the handler returned nothing."""
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
    run: ClaimedRun, namespace: str, redact: Callable[[str], str], configure: Callable[[], None]
) -> Attempting | None:
    """Start the span of an attempt; None if tracing is not configured."""
    try:
        configure()
        tracer = _tracer()
        return None if tracer is None else Attempting(tracer, run, namespace, redact)
    except Exception:
        _logger.exception("no span of run %s could be started", run.id)
        return None


def flush_all(seconds: float) -> None:
    """Export all spans, and wait at most ``seconds`` for it."""
    if (force_flush := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
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


def _extract(trace_context: str | None) -> Any:
    if not trace_context:
        return None
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
    if end.kind in (EndKind.SNOOZED, EndKind.RELEASED):
        return end.kind.value
    return "dead" if end.kind is EndKind.DISCARDED or run.attempt >= run.max_attempts else "failed"
