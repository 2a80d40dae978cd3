"""Account for slots: those that are due, in batches, and all that a definition owes before it is
changed.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from yamlsched import log
from yamlsched.db import blocking
from yamlsched.db.connection import reason
from yamlsched.db.query import Connection, execute, fetch_column
from yamlsched.errors import Refused, ScheduleError
from yamlsched.runs.release import release_followers
from yamlsched.sync import definitions, slot_plan, slot_rows
from yamlsched.sync.definitions import Definition
from yamlsched.sync.slot_plan import Gap, SlotPlan
from yamlsched.sync.slot_rows import write_rows

BATCH_JOBS = 1000
"""Jobs of one transaction: a commit for each would take most of the time."""
BATCH_LOCK_TIMEOUT_SECONDS, JOB_LOCK_TIMEOUT_SECONDS = 1.0, 0.1
"""How long a batch waits for a lock, and each job of one that failed."""
MAX_TRIES = 10
MAX_REPORTED_JOBS = 20
MAX_STORED_NAMES = 20
"""Jobs of one kind of change that are stored by name."""
CHANGES = ("added", "changed", "retired", "returned")
"""What a file does to a job."""
TRANSIENT_ERRORS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.QueryCanceled,
)
"""Errors because of other sessions: the caller tries its whole transaction again."""


UNREADABLE = (
    "this release cannot read its stored definition: {}. Correct its entry in schedules.yaml and"
    " sync, or upgrade yamlsched and tzdata on this host"
)


class FailedJob(NamedTuple):
    """A job whose slots could not be accounted for, and why."""

    job_type: str
    reason: str


@dataclass
class DueResult:
    """The runs and gaps that account for slots, and the jobs that failed.

    ``jobs_left`` is how many jobs the next sync has to process, for lack of time.
    """

    runs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    failed: list[FailedJob] = field(default_factory=list)
    jobs_left: int = 0

    def add(self, other: DueResult) -> None:
        """Add the result of a part, and log an event for each of its gaps and failed jobs."""
        self.runs += other.runs
        self.gaps += other.gaps
        self.failed += other.failed
        for gap in other.gaps:
            log.info(
                "slot.skipped",
                job=gap.job_type,
                first=gap.first,
                last=gap.last,
                slots=gap.slots,
                reason=gap.reason,
                detail=gap.detail,
            )
        for job, why in other.failed:
            log.error("slot.blocked", job=job, error=why)

    @property
    def problems(self) -> list[str]:
        """What needs attention, one line per job."""
        lines = [
            f'job "{job}": its due slots could not be written: {why}. The next tick tries again'
            for job, why in self.failed[:MAX_REPORTED_JOBS]
        ]
        more = len(self.failed) - MAX_REPORTED_JOBS
        return [*lines, f"{more} more jobs are not scheduled"] if more > 0 else lines


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of the jobs that a file changed, and the runs and gaps of what their old definitions
    ``owed``.
    """

    now: datetime
    added: tuple[str, ...]
    changed: tuple[str, ...]
    retired: tuple[str, ...]
    returned: tuple[str, ...]
    owed: DueResult
    edits: tuple[dict[str, Any], ...] = ()  # how each of them changed: see converge.py

    def summary(self) -> dict[str, Any]:
        """Return how many jobs were added, changed, retired and returned, and the first of each, as
        JSON values.
        """
        jobs = {kind: getattr(self, kind) for kind in CHANGES}
        return {
            kind: {"jobs": len(names), "first": list(names[:MAX_STORED_NAMES])}
            for kind, names in jobs.items()
            if names
        }

    @property
    def problems(self) -> list[str]:
        """What needs attention, one line per job."""
        return [
            f'job "{job}" was changed, and the slots that it owed could not be written: {why}.'
            " They are recorded as skipped, because they are late"
            for job, why in self.owed.failed
        ]


class _KeyConflict(Exception):
    """Another session has used a key since the keys were read: the batch is tried again."""


def account_for_due_slots(
    connection: Connection,
    namespace: str,
    now: datetime | None,
    deadline: float = float("inf"),
) -> DueResult:
    """Account for all due slots of a namespace: one transaction per batch of jobs.

    Concurrent syncs neither lose nor duplicate slots: each skips the jobs that another has locked.
    A job whose slots cannot be written delays no other: the jobs of a batch that fails are tried
    again one by one, after all the others. No transaction is started after ``deadline``, a time of
    the monotonic clock.
    """
    result = DueResult()
    ids = fetch_column(connection, "slots.due_jobs", namespace=namespace, now=now)
    todo = deque(
        (ids[start : start + BATCH_JOBS], BATCH_LOCK_TIMEOUT_SECONDS)
        for start in range(0, len(ids), BATCH_JOBS)
    )
    while todo and time.monotonic() <= deadline:
        batch, timeout = todo.popleft()
        try:
            part = _account_for_batch(connection, namespace, batch, now, timeout)
        except (psycopg.Error, Refused) as error:
            if connection.closed:
                raise
            if len(batch) > 1:
                # in random order: if there is no time for all, the others are processed by one of
                # the next ticks
                shuffled = random.sample(batch, len(batch))
                todo.extend(([id], JOB_LOCK_TIMEOUT_SECONDS) for id in shuffled)
                continue
            [job] = definitions.read(connection, batch)
            part = DueResult(failed=[FailedJob(job.job_type, _why_blocked(error))])
        result.add(part)
    result.jobs_left = sum(len(batch) for batch, _ in todo)
    if result.jobs_left:
        log.warning("sync.unfinished", jobs_left=result.jobs_left)
    return result


def release_runs(connection: Connection, namespace: str, now: datetime | None) -> DueResult:
    """Decide about all runs that wait for other jobs."""
    session: Any = blocking.Session(connection)
    failed = blocking.run(release_followers(session, namespace, None, now)).failed
    jobs = definitions.read(connection, list(failed))
    return DueResult(failed=[FailedJob(job.job_type, failed[job.id]) for job in jobs])


def note_failures(
    connection: Connection, namespace: str, failed: Sequence[FailedJob], now: datetime | None
) -> None:
    """Store why slots could not be written, so that ``status`` reports it at once."""
    names, errors = [job.job_type for job in failed], [job.reason for job in failed]
    # an error is logged with the slots, and the next sync tries again
    with suppress(psycopg.Error), connection.transaction():
        at = slot_rows.start_batch(connection, now, JOB_LOCK_TIMEOUT_SECONDS)
        execute(
            connection,
            "slots.note_failures",
            namespace=namespace,
            names=names,
            errors=errors,
            now=at,
        )


def _why_blocked(error: Exception) -> str:
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "another session holds a lock on its rows or on a key"
    return reason(error) if isinstance(error, psycopg.Error) else str(error)


def _account_for_batch(
    connection: Connection,
    namespace: str,
    ids: Sequence[int],
    now: datetime | None,
    lock_timeout_seconds: float,
) -> DueResult:
    def write() -> DueResult:
        at = slot_rows.start_batch(connection, now, lock_timeout_seconds)
        due = fetch_column(connection, "slots.lock_due_jobs", ids=ids, now=at)
        locked = definitions.read(connection, due)
        return _write(connection, namespace, locked, at, is_closing=False)

    return _retry_on_key_conflict(connection, write)


def _retry_on_key_conflict(connection: Connection, write: Callable[[], DueResult]) -> DueResult:
    """Return the result of ``write`` in its own transaction, retried while keys conflict with other
    sessions.
    """
    for _ in range(MAX_TRIES):
        with suppress(_KeyConflict), connection.transaction():
            return write()
    raise Refused(
        f"keys of due slots still conflict with other sessions after {MAX_TRIES} attempts"
    )


def account_for_locked(
    connection: Connection, namespace: str, locked: Sequence[Definition], now: datetime
) -> DueResult:
    """Account for all that locked definitions owe up to ``now``, inside the caller's transaction.

    Without a cap and without waiting: with ``overlap: wait`` it creates runs that then execute one
    after the other. Where the slots of a job cannot be written, the time since its last slot is one
    gap, and the others continue.
    """

    def close(jobs: Sequence[Definition]) -> DueResult:
        return _retry_on_key_conflict(
            connection, lambda: _write(connection, namespace, jobs, now, is_closing=True)
        )

    result = DueResult()
    try:
        result.add(close(locked))
    except (psycopg.Error, Refused) as error:
        _raise_transient(connection, error)
        for job in locked:
            try:
                result.add(close([job]))
            except (psycopg.Error, Refused) as error:
                _raise_transient(connection, error)
                failed = [FailedJob(job.job_type, _why_blocked(error))]
                gaps = _close_as_gap(connection, namespace, job, now)
                result.add(DueResult(gaps=gaps, failed=failed))
    return result


def _raise_transient(connection: Connection, error: Exception) -> None:
    if connection.closed or isinstance(error, TRANSIENT_ERRORS):
        raise error


def _close_as_gap(
    connection: Connection, namespace: str, job: Definition, now: datetime
) -> list[Gap]:
    """Record the time since the last slot of a job as one gap, if that is possible."""
    plan = slot_plan.decide(namespace, slot_plan.owed_by_unreadable(job, now), None, {})
    with suppress(psycopg.Error), connection.transaction():
        write_rows(connection, "slots.record_gaps", plan.gaps, now=now)
        write_rows(connection, "slots.move_cursors", [plan.move])
        return plan.gaps
    return []


def account_for_owed_slots(
    connection: Connection, namespace: str, ids: Sequence[int], now: datetime | None = None
) -> tuple[datetime, list[Definition], DueResult]:
    """Lock definitions and account for all that they owe, inside the caller's transaction, before
    they are changed.

    Returns the instant up to which that holds (the one to write as ``paused_at``) and the
    definitions as they are then.
    """
    locked = definitions.lock(connection, ids)
    at = slot_rows.start_batch(connection, now)
    result = account_for_locked(connection, namespace, locked, at)
    return at, definitions.read(connection, ids), result


def is_waiting(definition: Definition, open_slots: Container[int]) -> bool:
    """Return whether a job's due slots wait for an unfinished run, given the ids of the jobs that
    have one.
    """
    return definition.overlap == "wait" and not definition.after and definition.id in open_slots


def plan_slots(
    connection: Connection,
    namespace: str,
    jobs: Iterable[Definition],
    open_slots: Mapping[int, datetime],
    now: datetime,
    is_closing: bool,
) -> tuple[list[SlotPlan], list[FailedJob]]:
    """Return how the slots of jobs are to be accounted for, and the jobs whose definition cannot be
    read.
    """
    owed, failed = [], []
    for job in jobs:
        try:
            owed.append(slot_plan.owed_slots(job, now, is_closing))
        except ScheduleError as error:
            # written by a version of yamlsched or of the time zone data that knew more; the other
            # jobs continue
            failed.append(FailedJob(job.job_type, UNREADABLE.format(error)))
            if is_closing:
                owed.append(slot_plan.owed_by_unreadable(job, now))
    keys = [candidate.key for job in owed for candidate in job.candidates]
    holders = slot_rows.key_holders(connection, namespace, keys)
    plans = [
        slot_plan.decide(namespace, job, open_slots.get(job.definition.id), holders) for job in owed
    ]
    return plans, failed


def _write(
    connection: Connection,
    namespace: str,
    locked: Sequence[Definition],
    now: datetime,
    is_closing: bool,
) -> DueResult:
    """Write what accounts for the slots of locked definitions."""
    upstreams = slot_rows.followed(connection, namespace, locked)
    open_slots = slot_rows.earliest_open_slots(connection, namespace, [job.id for job in locked])
    jobs = [job for job in locked if is_closing or not is_waiting(job, open_slots)]
    plans, failed = plan_slots(connection, namespace, jobs, open_slots, now, is_closing)
    runs = [run for plan in plans for run in plan.runs]
    gaps = [gap for plan in plans for gap in plan.gaps]
    at = {"namespace": namespace, "now": now}
    if write_rows(connection, "slots.create_runs", runs, **at, by_hand=False) != len(runs):
        raise _KeyConflict
    write_rows(connection, "slots.record_gaps", gaps, now=now)
    slot_rows.await_upstreams(connection, namespace, jobs, runs, upstreams, now)
    write_rows(connection, "slots.move_cursors", [plan.move for plan in plans])
    decided = {run.definition_id for run in runs} | {gap.definition_id for gap in gaps}
    if decided:
        execute(connection, "follow.wake", ids=sorted(decided), **at)
    if runs:
        execute(connection, "runs.wake", namespace=namespace)
    return DueResult(len(runs), gaps, failed)
