"""How a call of a handler ends its attempt, wherever it was called."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from yamlsched import jsonb
from yamlsched.errors import Discard, EffectInDoubt, RetryAfter, Snooze
from yamlsched.handling.backends import Backend
from yamlsched.handling.run import Run
from yamlsched.handling.transactions import require_ended
from yamlsched.runs import MAX_STACK_CHARS, AttemptEnd, ClaimedRun, EndKind, EnqueueBatch, storable
from yamlsched.worker.executors import stacks
from yamlsched.worker.executors.processes.protocol import MAX_FRAME_BYTES, Report
from yamlsched.worker.handlers import resolve

MAX_REPORTED_ERROR_CHARS = 4_000
stacks.OWN_FILES.update((__file__, resolve.__code__.co_filename))


class Stopped(BaseException):
    """Raised in a handler that is stopped, so that its ``finally`` blocks run before it is killed."""


def make_run(run: ClaimedRun, payload: dict[str, Any], backend: Backend) -> Run:
    """Return ``run`` as its handler gets it."""
    slot = None if run.scheduled_for is None else datetime.fromisoformat(run.scheduled_for).astimezone(UTC)
    return Run(
        id=run.id,
        job_type=run.job_type,
        key=run.key,
        scheduled_for=slot,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        payload=payload,
        is_catchup=run.is_catchup,
        backend=backend,
    )


def returned(value: Any, run: Run | None, was_stopped: bool) -> AttemptEnd | None:
    """Return the end of an attempt whose handler returned ``value``; None for a success and nothing else to report.

    Raises Stopped if it ``was_stopped`` before, and Refused for a value that cannot be stored.
    """
    if value is None and run is None and not was_stopped:
        return None
    if run is not None and run.committed:
        if value is not None and value != run.state.result:
            run.log.warning("the result is what was set inside the transaction; the returned value is dropped")
        return AttemptEnd(EndKind.COMMITTED)
    if was_stopped:
        raise Stopped("stopped by yamlsched, but it returned")
    if run is not None and run.state.succeeded_in is not None:
        require_ended(run)  # whether by a commit is found out by the worker, which writes the same success again
        if value is not None and value != run.state.result:
            run.log.warning("the result is what was set before run.succeed_in(); the returned value is dropped")
        value = run.state.result
    result = jsonb.encode_result(value, "the result")
    enqueued = _plain(run.state.enqueued) if run is not None else []
    if result is None and not enqueued:
        return None
    return AttemptEnd(EndKind.RETURNED, result=result, enqueued=enqueued)


def raised(error: BaseException, run: Run | None) -> AttemptEnd:
    """Return the end of an attempt whose handler raised ``error``."""
    if run is not None and run.committed:
        logging.getLogger(run.job_type).exception("an exception after the commit: the run has succeeded")
        return AttemptEnd(EndKind.COMMITTED)
    end = _end_of(error)
    return end._replace(kind=EndKind.SESSION_LOST) if run is not None and run.is_session_lost(error) else end


def bounded(report: Report, encode: Callable[[Report], bytes]) -> bytes:
    """Return the frame of ``report``; if that is too large, the frame of its failure."""
    content = encode(report)
    if report.end is None or len(content) <= MAX_FRAME_BYTES:
        return content
    runs = sum(len(batch.payloads) for batch in report.end.enqueued)
    size, limit = f"{len(content) >> 20} MiB", f"{MAX_FRAME_BYTES >> 20} MiB"
    error = f"it enqueued {runs} runs, {size}, over the limit of {limit}: "
    error += "enqueue fewer in one attempt, and let some of them enqueue the rest"
    return encode(report._replace(end=AttemptEnd(EndKind.RAISED, error, "EnqueueRefused")))


def _plain(enqueued: list[EnqueueBatch]) -> list[EnqueueBatch]:
    """Return ``enqueued`` in types that a frame can hold: a job's name or a key may be of a class of the handler's."""
    return [
        batch._replace(job_type=str(batch.job_type), keys=[key if key is None else str(key) for key in batch.keys])
        for batch in enqueued
    ]


def _end_of(error: BaseException) -> AttemptEnd:
    kind, delay, stack = EndKind.RAISED, None, _stack(error)
    error = _effect_in_doubt(error) or error
    if isinstance(error, (Discard, EffectInDoubt)):
        kind = EndKind.DISCARDED  # a retry knows no more about an effect in doubt than this attempt
    elif isinstance(error, RetryAfter):
        kind, delay = EndKind.RETRY_AFTER, error.delay
    elif isinstance(error, Snooze):
        kind, delay = EndKind.SNOOZED, error.delay
    try:
        text = str(error) or repr(error)
        if isinstance(error, SystemExit):
            text = f"called sys.exit({error.code!r})"
        text = storable(text[:MAX_REPORTED_ERROR_CHARS])
    except BaseException:  # whatever it is, it must not hide the end of the attempt
        text = "exception has no printable message"
    name = storable(type(error).__name__[:MAX_REPORTED_ERROR_CHARS])
    return AttemptEnd(kind, text, name, storable(stack[-MAX_STACK_CHARS:]), delay=delay)


def _effect_in_doubt(error: BaseException) -> EffectInDoubt | None:
    """Return the effect in doubt, also of a task of an asynchronous handler."""
    while isinstance(error, BaseExceptionGroup) and (found := error.subgroup(EffectInDoubt)) is not None:
        error = found.exceptions[0]
    return error if isinstance(error, EffectInDoubt) else None


def _stack(error: BaseException) -> str:
    """Return the traceback, without our own frames before the handler's."""
    try:
        return stacks.format_stack(error)
    except BaseException:  # of its __str__
        return ""
