"""What a run is, and how the end of an attempt changes it. Pure: times and random numbers are
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from yamlsched.runs.backoff import MAX_DELAY, MIN_DELAY, Backoff, delay
from yamlsched.text import escape_control

MAX_ERROR_CHARS = 500
"""Characters of ``last_error``: one line that is safe to show."""
MAX_STACK_CHARS = 16_000
"""Characters of a failed attempt's stack. The end of a longer one is kept: the cause is there."""
MAX_OUTPUT_BYTES = 65_536
"""Bytes of an attempt's output that are kept: the last ones."""
MAX_RELEASES = 3
"""Releases of a run in a row that cost nothing although it had begun, such as by shutdowns."""
LOST_WORKER = {
    "lost_error": "lost its worker %s: it stopped answering, and its lease ended at %s",
    "lost_type": "LostWorker",
}
"""The error of an attempt whose lease ended: parameters of the statements that record one."""

DEFAULT_QUEUE = "default"
"""The queue of jobs that name none."""
WORKER_DIED, BLOCKED, UNSTOPPABLE = "WorkerDied", "Blocked", "Unstoppable"
PROCESS_ENDED = (WORKER_DIED, BLOCKED, UNSTOPPABLE)
"""The error types of attempts that ended with their process: it died, or was killed because of one
of its runs.

The next attempt of a handler that is a coroutine has a process to itself.
"""


class Status(StrEnum):
    """The states of a run; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Priority(IntEnum):
    """Which of the due runs are claimed first, as stored. A waiting lower level still gets one
    claimed run in eight.
    """

    HIGH = 1
    NORMAL = 2
    LOW = 3


class Keep(StrEnum):
    """Of which attempts the output is kept."""

    ALWAYS = "always"
    FAILED = "failed"
    NEVER = "never"


class ClaimedRun(NamedTuple):
    """A claimed run, with the claim that fences every write about it.

    The fields are the first columns that the claim statements return. One is created for each run
    that is executed, and it is sent to a child process unchanged: hence a tuple of plain values.
    """

    id: int
    job_type: str
    key: str | None
    scheduled_for: str | None  # ISO 8601: only the child reads it
    attempt: int
    max_attempts: int
    payload: str  # JSON text: only the child that runs the handler reads it
    is_catchup: bool
    lease: float  # seconds
    locked_by: str
    prior_attempts: int = 0  # before an operator's retry
    releases: int = 0  # of attempts in a row that had begun
    error_type: str | None = None  # of the last failure
    # W3C: the traceparent of what enqueued it, and after a space the tracestate
    trace_context: str | None = None
    upstream: str | None = None  # JSON text: what the jobs have done that it waited for, by name
    trigger: str | None = None  # JSON text: of a hook's run, the run whose end it reports


class EnqueueBatch(NamedTuple):
    """Runs of one job that a handler or an application enqueues by one statement. Plain values: it
    crosses a pipe.
    """

    job_type: str
    payloads: list[str]  # JSON
    keys: list[str | None]  # one for each payload
    run_at: str | None  # RFC 3339
    delay: float | None  # seconds from the statement, on the database's clock; with neither: now
    priority: str | None = None  # None: the job's
    trace_contexts: list[str] | None = None  # one for each payload, or None

    def can_join(self, other: EnqueueBatch) -> bool:
        """Return whether one statement can enqueue the runs of both."""
        if (self.trace_contexts is None) != (other.trace_contexts is None):
            return False
        own = self._replace(
            payloads=other.payloads, keys=other.keys, trace_contexts=other.trace_contexts
        )
        return own == other

    def join(self, other: EnqueueBatch) -> None:
        """Add the runs of ``other``, which can join."""
        self.payloads.extend(other.payloads)
        self.keys.extend(other.keys)
        if self.trace_contexts is not None and other.trace_contexts is not None:
            self.trace_contexts.extend(other.trace_contexts)


class EndKind(StrEnum):
    """How an attempt ended."""

    RETURNED = "returned"
    COMMITTED = "committed"  # it returned, and its own transaction has already written the success
    RAISED = "raised"
    DISCARDED = "discarded"
    RETRY_AFTER = "retry_after"
    SNOOZED = "snoozed"
    RELEASED = "released"  # never started, or stopped by a shutdown


Usage: TypeAlias = tuple[float, int | None]
"""What an attempt used: CPU seconds, and the peak of its memory in bytes. None: that is not known.
Below zero: it was not more than that, which is the size of the process that started a program.
"""
FAILURES = (EndKind.RAISED, EndKind.DISCARDED, EndKind.RETRY_AFTER)


class AttemptEnd(NamedTuple):
    """How an attempt ended, as the process that executed it reports it."""

    kind: EndKind
    error: str = ""  # the exception's text
    error_type: str = ""  # the exception's class
    stack: str = ""
    result: str | None = None  # JSON text
    delay: timedelta | None = None  # until the next attempt, for RETRY_AFTER and SNOOZED
    enqueued: Sequence[EnqueueBatch] = ()  # written together with the success
    output: str = ""  # the end of what the handler printed, if it is kept
    omitted_bytes: int = 0  # before `output`
    usage: Usage | None = None
    has_begun: bool = True  # it was handed to a process

    @property
    def is_success(self) -> bool:
        return self.kind is EndKind.RETURNED or self.kind is EndKind.COMMITTED

    @property
    def is_failure(self) -> bool:
        return self.kind in FAILURES


class Outcome(NamedTuple):
    """What is written about a run. ``delay`` counts from now; ``refund``: the attempt is not
    counted.
    """

    status: Status
    delay: timedelta | None = None
    refund: bool = False
    has_begun: bool = True
    error: str | None = None
    error_type: str | None = None
    stack: str | None = None
    result: str | None = None
    output: str | None = None  # None: none is kept
    omitted_bytes: int = 0
    releases: int = 0  # the run's new count
    usage: Usage | None = None


SUCCESS_WITHOUT_RESULT = Outcome(Status.SUCCEEDED)
"""The outcome of a run whose handler returned nothing."""


def released(run: ClaimedRun, has_begun: bool = False) -> Outcome:
    """Return the outcome of an attempt that was not started, or was stopped by a shutdown: it costs
    nothing.
    """
    releases = run.releases + has_begun
    return Outcome(Status.QUEUED, refund=True, has_begun=has_begun, releases=releases)


def after_attempt(
    run: ClaimedRun,
    end: AttemptEnd,
    backoff: Backoff,
    random: float,
    redact: Callable[[str], str] = str,
) -> Outcome:
    """Return the outcome of ``run`` after ``end``. ``random`` is in [0, 1), for the jitter of
    ``backoff``.

    ``redact`` removes secrets from the strings that are stored. After an operator's retry the
    backoff starts over.
    """
    outcome = _without_output(run, end, backoff, random, redact)._replace(usage=end.usage)
    if not end.output:
        return outcome
    kept, omitted_bytes = last_bytes(storable(redact(end.output)))
    return outcome._replace(output=kept, omitted_bytes=end.omitted_bytes + omitted_bytes)


def _without_output(
    run: ClaimedRun, end: AttemptEnd, backoff: Backoff, random: float, redact: Callable[[str], str]
) -> Outcome:
    if end.is_success:
        return (
            SUCCESS_WITHOUT_RESULT
            if end.result is None
            else Outcome(Status.SUCCEEDED, result=end.result)
        )
    releases = 0
    if end.kind is EndKind.RELEASED:
        if not end.has_begun or run.releases < MAX_RELEASES:
            return released(run, end.has_begun)._replace(delay=end.delay)
        releases = run.releases
        why = f"{end.error}, and it had been released {releases} times in a row before"
        end = end._replace(error=why, error_type="Released")
    if end.kind is EndKind.SNOOZED:
        return Outcome(Status.QUEUED, delay=_bounded(end.delay), refund=True)
    is_dead = end.kind is EndKind.DISCARDED or run.attempt >= run.max_attempts
    wait = None if is_dead else _wait(run, end, backoff, random)
    return Outcome(
        Status.DEAD if is_dead else Status.FAILED,
        delay=wait,
        error=one_line(redact(end.error)) or "failed without a message",
        error_type=one_line(end.error_type, 200) or None,
        stack=storable(redact(end.stack))[-MAX_STACK_CHARS:] or None,
        releases=releases,
    )


def _wait(run: ClaimedRun, end: AttemptEnd, backoff: Backoff, random: float) -> timedelta:
    """Return the time until the next attempt."""
    if end.kind is EndKind.RETRY_AFTER:
        return _bounded(end.delay)
    return delay(backoff, max(1, run.attempt - run.prior_attempts), random)


def _bounded(wait: timedelta | None) -> timedelta:
    """Return the delay that a handler asked for. At 0, attempts would be used up at once, and a
    snooze never ends.
    """
    return min(max(wait or MIN_DELAY, MIN_DELAY), MAX_DELAY)


def storable(text: str) -> str:
    """Return ``text`` as PostgreSQL can store it: without NUL and lone surrogates.

    >>> storable("a\\x00b\\ud800")
    'a\\\\x00b?'
    """
    text = text.replace("\x00", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def last_bytes(output: str, max_bytes: int = MAX_OUTPUT_BYTES) -> tuple[str, int]:
    """Return the end of ``output`` that is kept, and the bytes before it.

    >>> kept, omitted_bytes = last_bytes("\u20ac" * 30_000)
    >>> len(kept), omitted_bytes
    (21845, 24465)
    """
    content = output.encode()
    # a character that is cut is left out
    kept = content[-max_bytes:].decode("utf-8", "ignore")
    return kept, len(content) - len(kept.encode())


def one_line(text: str, max_chars: int = MAX_ERROR_CHARS) -> str:
    """Return ``text`` as one bounded line without control characters.

    >>> one_line("no route\\n to \\x1b[31mhost")
    'no route to \\\\x1b[31mhost'
    """
    safe = escape_control(" ".join(storable(text[: max_chars * 4]).split()))
    return safe if len(safe) <= max_chars else safe[: max_chars - 1] + "…"


def error_text(error_type: str | None, error: str | None) -> str:
    """Return an error with its type, because the message alone may say nothing.

    >>> error_text("KeyError", "'week'")
    "KeyError: 'week'"
    """
    return f"{error_type}: {error}" if error_type and error else error or ""
