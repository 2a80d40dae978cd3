"""The rule by which workers are started: a pure function, without a clock and without I/O.

A start is a row in ``yamlsched.workers`` that is committed before its command runs. So a
start that is on its way counts like a worker, and no tick starts it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from yamlsched import durations

LIVE_FOR = timedelta(seconds=60)
"""A worker is live for this long after it was seen. It reports each 15 s."""
MIN_DELAY = timedelta(seconds=10)
MAX_DELAY = timedelta(minutes=10)
DUE_FOR = timedelta(seconds=10)
"""A run counts once it was claimable for this long: a live worker takes it sooner."""


@dataclass(frozen=True, kw_only=True)
class QueueStart:
    """A queue whose workers are started, and how; ``concurrency`` is that of one worker."""

    queue: str
    command: tuple[str, ...]
    max_workers: int
    concurrency: int
    start_timeout: timedelta


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """A row of ``yamlsched.workers``: a worker that was requested, has reported, or both.

    A start that was requested fails without a report ``start_by``. ``runs`` counts the runs that it
    has begun to execute.
    """

    id: str
    requested_at: datetime | None = None
    start_by: datetime | None = None
    reported_at: datetime | None = None
    seen_at: datetime | None = None
    leaving_at: datetime | None = None
    ended_at: datetime | None = None
    runs: int = 0
    error: str | None = None

    @property
    def is_unproven(self) -> bool:
        """Whether it was requested and has not executed a run."""
        return self.requested_at is not None and self.ended_at is None and self.runs == 0


@dataclass(frozen=True, kw_only=True)
class QueueLoad:
    """How much there is to do: runs that are due, and those that execute.

    Due means claimable for ``DUE_FOR``. Runs that leaving workers hold do not count.
    ``oldest_due_at`` is since when the oldest due run could be claimed.
    """

    runs: int = 0
    oldest_due_at: datetime | None = None


@dataclass(frozen=True)
class StartState:
    """What is remembered between decisions: a row of ``yamlsched.queue_states``."""

    failed_starts: int = 0  # in a row
    failed_at: datetime | None = None
    next_start_at: datetime | None = None
    decided_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many workers to start, and what to write before.

    ``lost`` are workers that have ended without a word, with the reason; ``failed`` those whose
    start has failed although they ended in order. Without ``is_change`` there is nothing to do.
    """

    count: int
    state: StartState
    lost: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    is_change: bool = True


def decide(
    now: datetime,
    start: QueueStart,
    state: StartState,
    workers: Sequence[WorkerRow],
    load: QueueLoad,
) -> Decision:
    """Return how many workers to start now.

    ``workers`` are those of the queue that have not ended, or ended since ``state.decided_at``.
    """
    lost = {w.id: reason for w in workers if (reason := _lost(w, now))}
    left = {w.id: reason for w in workers if (reason := _failed(w, state, load))}
    has_failed = bool(left) or any(w.id in lost and w.runs == 0 and w.requested_at for w in workers)
    before, state = state, _next_state(now, state, workers, has_failed)
    workers = [w for w in workers if w.ended_at is None and w.id not in lost]
    count = _wanted(start, workers, load)
    if state.failed_starts:
        is_early = state.next_start_at is not None and now < state.next_start_at
        has_probe = any(w.is_unproven for w in workers)
        count = 0 if is_early or has_probe else min(count, 1)
    is_change = bool(count or lost or left) or state.failed_starts != before.failed_starts
    return Decision(count=count, state=state, lost=lost, failed=left, is_change=is_change)


def _wanted(start: QueueStart, workers: Sequence[WorkerRow], load: QueueLoad) -> int:
    """Return how many workers are missing.

    A leaving worker takes no more runs, so it does not count as help; but it still has its place
    in the engine, so it counts under the maximum. One that somebody else started helps, and has
    no place.
    """
    needed = -(-load.runs // start.concurrency)
    helping = sum(w.leaving_at is None for w in workers)
    places = start.max_workers - sum(w.requested_at is not None for w in workers)
    return max(0, min(needed - helping, places))


def _lost(worker: WorkerRow, now: datetime) -> str | None:
    if worker.ended_at is not None:
        return None
    if worker.reported_at is None:
        assert worker.requested_at is not None
        assert worker.start_by is not None
        timeout = durations.show(worker.start_by - worker.requested_at)
        return f"no worker reported within {timeout}" if now >= worker.start_by else None
    assert worker.seen_at is not None
    if now < worker.seen_at + LIVE_FOR:
        return None
    return f"lost: last seen at {worker.seen_at:%Y-%m-%dT%H:%M:%SZ}"


def _failed(worker: WorkerRow, state: StartState, load: QueueLoad) -> str | None:
    """Return why the start of a worker that has ended since the last decision has failed."""
    ended_at, decided_at = worker.ended_at, state.decided_at
    is_known = ended_at is None or (decided_at is not None and ended_at <= decided_at)
    if is_known or worker.requested_at is None or worker.runs:
        return None
    if worker.reported_at is None:
        return worker.error  # that of its command; none: it was refused
    assert ended_at is not None
    if load.oldest_due_at is None or load.oldest_due_at + DUE_FOR > ended_at:
        return None
    return worker.error or "it exited without a run although runs were due"


def _next_state(
    now: datetime, state: StartState, workers: Sequence[WorkerRow], has_failed: bool
) -> StartState:
    if has_failed:
        failed_starts = state.failed_starts + 1
        return StartState(
            failed_starts=failed_starts,
            failed_at=now,
            next_start_at=now + delay(failed_starts),
            decided_at=now,
        )
    if any(_has_recovered(worker, state) for worker in workers):
        return StartState(decided_at=now)
    return replace(state, decided_at=now)


def _has_recovered(worker: WorkerRow, state: StartState) -> bool:
    """Return whether ``worker`` shows that starts work again: it came after the last failure."""
    if worker.requested_at is None or worker.reported_at is None or state.failed_at is None:
        return False
    return worker.runs > 0 and worker.reported_at > state.failed_at


def delay(failed_starts: int) -> timedelta:
    """Return how long to wait after so many failed starts in a row.

    >>> [str(delay(n)) for n in (1, 2, 3, 7, 40)]
    ['0:00:10', '0:00:20', '0:00:40', '0:10:00', '0:10:00']
    """
    doublings = min(failed_starts - 1, 6)
    return min(MAX_DELAY, MIN_DELAY * (1 << doublings))
