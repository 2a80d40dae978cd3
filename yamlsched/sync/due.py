"""Account for slots: those that are due, in batches, and all that a definition owes before it is
changed.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import Connection, Cursor

from yamlsched import log
from yamlsched.db import blocking
from yamlsched.db.connection import reason
from yamlsched.db.query import load
from yamlsched.errors import Refused, ScheduleError
from yamlsched.runs import follow
from yamlsched.sync import definitions, slot_plan
from yamlsched.sync.definitions import Definition
from yamlsched.sync.slot_plan import AwaitedSlot, CursorMove, Gap, KeyHolder, NewRun, SlotPlan

CHUNK_ROWS = 5000
"""Rows of one insert: accounting for a year of a minutely job must not build one message of half a
million.
"""


T = TypeVar("T")


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + CHUNK_ROWS] for start in range(0, len(values), CHUNK_ROWS))


def _array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array literal of numbers, instants, reasons and keys, none of which needs
    quotes.

    psycopg's own dumper takes half the time of a sync of ten thousand jobs.
    """
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def _write_rows(
    connection: Connection[Any],
    statement: str,
    rows: Sequence[NewRun | Gap | CursorMove | AwaitedSlot],
    file: str = "slots",
    **parameters: Any,
) -> list[Cursor[Any]]:
    """Execute a statement for rows in chunks: each field is a parameter of that name, an array."""
    sql = load(file)[statement]
    cursors = []
    for chunk in _chunks(rows):
        columns = zip(chunk[0]._fields, map(_array, zip(*chunk, strict=True)), strict=True)
        cursors.append(connection.execute(sql, {**dict(columns), **parameters}))
    return cursors


def start_batch(
    connection: Connection[Any], now: datetime | None, lock_timeout_seconds: float | None = None
) -> datetime:
    """Prepare the transaction for work on a few hundred jobs by index, and return its instant.

    A statement that waits longer than the timeout for a lock fails; None: the timeout of the
    session.
    """
    timeout = None if lock_timeout_seconds is None else f"{lock_timeout_seconds * 1000:.0f}ms"
    [row] = connection.execute(
        load("slots")["start_batch"], {"now": now, "timeout": timeout}
    ).fetchall()
    instant: datetime = row.now
    return instant


def due_jobs(connection: Connection[Any], namespace: str, now: datetime | None) -> list[int]:
    """Return the ids of definitions that have a slot to account for and need not wait, the longest
    due first.
    """
    rows = connection.execute(
        load("slots")["due_jobs"], {"namespace": namespace, "now": now}
    ).fetchall()
    return [row.id for row in rows]


def lock_due_jobs(
    connection: Connection[Any], ids: Sequence[int], now: datetime
) -> list[Definition]:
    """Lock those of the definitions that are still due and not locked by another session."""
    rows = connection.execute(
        load("slots")["lock_due_jobs"], {"ids": _array(ids), "now": now}
    ).fetchall()
    return definitions.read(connection, [row.id for row in rows])


def earliest_open_slots(
    connection: Connection[Any], namespace: str, ids: Iterable[int]
) -> dict[int, datetime]:
    """Return, by definition, the earliest slot with an unfinished run that excludes others."""
    parameters = {"namespace": namespace, "ids": _array(ids)}
    return {
        row.id: row.slot
        for row in connection.execute(load("slots")["earliest_open_slots"], parameters)
    }


def key_holders(
    connection: Connection[Any], namespace: str, keys: Sequence[str]
) -> dict[str, KeyHolder]:
    """Return the holders of those keys that are, or were, in use."""
    holders = {}
    for chunk in _chunks(keys):
        for row in connection.execute(
            load("slots")["key_holders"], {"namespace": namespace, "keys": _array(chunk)}
        ):
            holders[row.key] = KeyHolder(row.job_type, row.scheduled_for, row.run_id, row.status)
    return holders


def create_runs(
    connection: Connection[Any],
    runs: Sequence[NewRun],
    namespace: str,
    now: datetime,
    by_hand: bool = False,
) -> list[Cursor[Any]]:
    """Insert runs in order, except those whose key is, or was, in use: the cursors' row counts show
    how many.
    """
    return _write_rows(
        connection, "create_runs", runs, namespace=namespace, now=now, by_hand=by_hand
    )


def followed(
    connection: Connection[Any], namespace: str, jobs: Iterable[Definition]
) -> dict[str, Any]:
    """Return by name what decides the slots of the jobs that ``jobs`` follow."""
    names = sorted({name for job in jobs for name in job.after})
    rows = (
        connection.execute(load("follow")["upstreams"], {"namespace": namespace, "names": names})
        if names
        else ()
    )
    return {row.job_type: row for row in rows}


def await_upstreams(
    connection: Connection[Any],
    namespace: str,
    jobs: Iterable[Definition],
    runs: Sequence[NewRun],
    upstreams: Mapping[str, Any],
    now: datetime,
) -> None:
    """Store what new runs wait for. ``upstreams`` is what ``followed`` returned, under the lock of
    ``jobs``.
    """
    after = {
        job.id: [upstreams[name] for name in job.after if name in upstreams]
        for job in jobs
        if job.after
    }
    rows = [
        AwaitedSlot(
            run.key,
            job.id,
            slot_plan.awaited_slot(job.schedule, job.timezone, job.effective_from, run.slot),
        )
        for run in runs
        for job in after.get(run.definition_id, ())
    ]
    _write_rows(connection, "await", rows, "follow", namespace=namespace, now=now)


def wake_followers(
    connection: Connection[Any], namespace: str, ids: Iterable[int], now: datetime
) -> None:
    """Have what waits for slots of these jobs looked at again: they have a run or a gap now, or
    will have none.
    """
    connection.execute(
        load("follow")["wake"], {"namespace": namespace, "ids": sorted(ids), "now": now}
    )


def record_gaps(connection: Connection[Any], gaps: Sequence[Gap], now: datetime) -> None:
    """Record gaps, or extend those that they continue."""
    _write_rows(connection, "record_gaps", gaps, now=now)


def move_cursors(connection: Connection[Any], moves: Sequence[CursorMove]) -> None:
    """Set the cursors and next slots of definitions that the caller has locked."""
    _write_rows(connection, "move_cursors", moves)


def notify_workers(connection: Connection[Any], namespace: str) -> None:
    """Wake up continuous workers once the transaction has committed."""
    connection.execute(load("slots")["notify_workers"], {"namespace": namespace})


PIPELINE_JOBS = 250
"""Jobs that are planned while the server writes those before."""
MAX_TRIES = 10
MAX_REPORTED_JOBS = 20


class BatchLimits(NamedTuple):
    """The size of a transaction, and how long it waits for a lock."""

    jobs: int
    lock_timeout_seconds: float


TRANSIENT_ERRORS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.QueryCanceled,
)
"""Errors because of other sessions: the caller tries its whole transaction again."""
STEPS = (BatchLimits(1000, 1.0), BatchLimits(25, 0.1), BatchLimits(1, 0.1))
"""At first, after a batch has failed, and after a part of that has failed: for example because
another session has inserted a key and not committed. A thousand jobs share one commit and take a
tenth of a second.
"""


class FailedJob(NamedTuple):
    """A job whose slots could not be accounted for, and why."""

    job_type: str
    reason: str


@dataclass
class DueResult:
    """The runs and gaps that account for slots, and the jobs that failed.

    ``unreadable`` are jobs whose stored definition this release or its time zone data cannot read;
    ``blocked`` those whose slots could not be written. ``jobs_left`` is how many jobs the next sync
    has to process, for lack of time.
    """

    runs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[FailedJob] = field(default_factory=list)
    blocked: list[FailedJob] = field(default_factory=list)
    jobs_left: int = 0

    @property
    def failed(self) -> list[FailedJob]:
        """The jobs whose slots were not accounted for."""
        return [*self.unreadable, *self.blocked]

    def add(self, other: DueResult) -> None:
        self.runs += other.runs
        self.gaps += other.gaps
        self.unreadable += other.unreadable
        self.blocked += other.blocked

    @property
    def problems(self) -> list[str]:
        """What needs attention, one line per job."""
        lines = [
            f'job "{job}" is not scheduled: this release cannot read its stored definition: {why}.'
            " Correct its entry in schedules.yaml and sync, or upgrade yamlsched and tzdata on"
            " this host"
            for job, why in self.unreadable
        ]
        lines += [
            f'job "{job}": its due slots could not be written: {why}. The next tick tries again'
            for job, why in self.blocked
        ]
        more = len(lines) - MAX_REPORTED_JOBS
        return (
            lines
            if more <= 0
            else [*lines[:MAX_REPORTED_JOBS], f"{more} more jobs are not scheduled"]
        )

    def log(self) -> None:
        """Log an event for each gap and each job that failed."""
        for gap in self.gaps:
            log.info(
                "slot.skipped",
                job=gap.job_type,
                first=gap.first,
                last=gap.last,
                slots=gap.slots,
                reason=gap.reason,
                detail=gap.detail,
            )
        for job, why in self.unreadable:
            log.error("slot.unreadable", job=job, error=why)
        for job, why in self.blocked:
            log.error("slot.blocked", job=job, error=why)


MAX_STORED_NAMES = 20
"""Jobs of one kind of change that are stored by name."""


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
    unreadable: tuple[FailedJob, ...] = ()
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
        lines = [
            f'job "{job}" was changed, and its stored definition could not be read: {why}. Its'
            " slots since the last processed one are recorded as one gap, late"
            for job, why in self.owed.unreadable
        ]
        lines += [
            f'job "{job}" was changed, and the slots that it owed could not be written: {why}. They'
            " are recorded as one gap, late"
            for job, why in self.owed.blocked
        ]
        return lines + DueResult(unreadable=list(self.unreadable)).problems


CHANGES = ("added", "changed", "retired", "returned")
"""What a file does to a job."""


class _KeyConflict(Exception):
    """An insert found a key in use: the batch is tried again, with the keys read first."""


def account_for_due_slots(
    connection: Connection[Any],
    namespace: str,
    now: datetime | None,
    deadline: float = float("inf"),
) -> DueResult:
    """Account for all due slots of a namespace: one transaction per batch of jobs.

    Concurrent syncs neither lose nor duplicate slots: each skips the jobs that another has locked.
    A job whose slots cannot be written delays no other: a batch that fails is tried again in
    smaller parts, after all the others. No transaction is started after ``deadline``, a time of the
    monotonic clock.
    """
    result = DueResult()
    todo = deque((ids, 0) for ids in _parts(due_jobs(connection, namespace, now), 0))
    while todo and time.monotonic() <= deadline:
        ids, step = todo.popleft()
        try:
            batch = _account_for_batch(
                connection, namespace, ids, now, STEPS[step].lock_timeout_seconds
            )
        except (psycopg.Error, Refused) as error:
            if connection.closed:
                raise
            if len(ids) > 1:
                # in random order: if there is no time for all, the others are processed by one of
                # the next ticks
                todo.extend(
                    (part, step + 1) for part in _parts(random.sample(ids, len(ids)), step + 1)
                )
                continue
            [job] = definitions.read(connection, ids)
            batch = DueResult(blocked=[FailedJob(job.job_type, _why_blocked(error))])
        batch.log()
        result.add(batch)
    result.jobs_left = sum(len(ids) for ids, _ in todo)
    if result.jobs_left:
        log.warning("sync.unfinished", jobs_left=result.jobs_left)
    return result


def release_runs(
    connection: Connection[Any], namespace: str, now: datetime | None
) -> list[FailedJob]:
    """Decide about all runs that wait for other jobs; return the jobs about which nothing could be
    written.
    """
    session: Any = blocking.Session(connection)
    settled = blocking.run(follow.settle(session, namespace, None, now))
    names = {
        job.id: job.job_type
        for job in definitions.read(connection, [id for id, _ in settled.failed])
    }
    return [FailedJob(names[id], why) for id, why in settled.failed]


def note_failures(
    connection: Connection[Any], namespace: str, failed: Sequence[FailedJob], now: datetime | None
) -> None:
    """Store why slots could not be written, so that ``status`` reports it at once."""
    names, errors = [job.job_type for job in failed], [job.reason for job in failed]
    parameters = {"namespace": namespace, "names": names, "errors": errors}
    with (
        suppress(psycopg.Error),
        connection.transaction(),
    ):  # they are logged, and the next sync tries again
        at = start_batch(connection, now, STEPS[-1].lock_timeout_seconds)
        connection.execute(load("slots")["note_failures"], {**parameters, "now": at})


def _parts(ids: Sequence[int], step: int) -> Iterator[Sequence[int]]:
    size = STEPS[step].jobs
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _why_blocked(error: Exception) -> str:
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "another session holds a lock on its rows or on a key"
    return reason(error) if isinstance(error, psycopg.Error) else str(error)


def _account_for_batch(
    connection: Connection[Any],
    namespace: str,
    ids: Sequence[int],
    now: datetime | None,
    lock_timeout_seconds: float,
) -> DueResult:
    def write(read_keys: bool) -> DueResult:
        at = start_batch(connection, now, lock_timeout_seconds)
        locked = lock_due_jobs(connection, ids, at)
        return _write(connection, namespace, locked, at, is_closing=False, read_keys=read_keys)

    return _retry_on_key_conflict(connection, write)


def _retry_on_key_conflict(
    connection: Connection[Any], write: Callable[[bool], DueResult]
) -> DueResult:
    """Return ``write(read_keys)`` in its own transaction, retried while keys conflict with other
    sessions.
    """
    for attempt in range(MAX_TRIES):
        with suppress(_KeyConflict), connection.transaction():
            return write(attempt > 0)
    raise Refused(
        f"keys of due slots still conflict with other sessions after {MAX_TRIES} attempts"
    )


def account_for_locked(
    connection: Connection[Any], namespace: str, locked: Sequence[Definition], now: datetime
) -> DueResult:
    """Account for all that locked definitions owe up to ``now``, inside the caller's transaction.

    Without a cap and without waiting: with ``overlap: wait`` it creates runs that then execute one
    after the other. Where the slots of a job cannot be written, the time since its last slot is one
    gap, and the others continue.
    """
    result = _close(connection, namespace, locked, now)
    result.log()
    return result


def _close(
    connection: Connection[Any], namespace: str, locked: Sequence[Definition], now: datetime
) -> DueResult:
    def write(read_keys: bool) -> DueResult:
        return _write(connection, namespace, locked, now, is_closing=True, read_keys=read_keys)

    try:
        return _retry_on_key_conflict(connection, write)
    except (psycopg.Error, Refused) as error:
        if connection.closed or isinstance(error, TRANSIENT_ERRORS):
            raise
        if len(locked) > 1:
            middle = len(locked) // 2
            result = _close(connection, namespace, locked[:middle], now)
            result.add(_close(connection, namespace, locked[middle:], now))
            return result
        [job] = locked
        blocked = DueResult(blocked=[FailedJob(job.job_type, _why_blocked(error))])
        plan = slot_plan.decide(namespace, slot_plan.owed_by_unreadable(job, now), None, {})
        with suppress(psycopg.Error), connection.transaction():
            record_gaps(connection, plan.gaps, now)
            move_cursors(connection, [plan.move])
            blocked.gaps = plan.gaps
        return blocked


def account_for_owed_slots(
    connection: Connection[Any], namespace: str, ids: Sequence[int], now: datetime | None = None
) -> tuple[datetime, list[Definition], DueResult]:
    """Lock definitions and account for all that they owe, inside the caller's transaction, before
    they are changed.

    Returns the instant up to which that holds (the one to write as ``paused_at``) and the
    definitions as they are then.
    """
    locked = definitions.lock(connection, ids)
    at = start_batch(connection, now)
    result = account_for_locked(connection, namespace, locked, at)
    return at, definitions.read(connection, list(ids)), result


def is_waiting(definition: Definition, open_slots: Container[int]) -> bool:
    """Return whether a job's due slots wait for an unfinished run, given the ids of the jobs that
    have one.
    """
    return definition.overlap == "wait" and not definition.after and definition.id in open_slots


def plan_slots(
    connection: Connection[Any],
    namespace: str,
    jobs: Iterable[Definition],
    open_slots: Mapping[int, datetime],
    now: datetime,
    is_closing: bool,
    read_keys: bool = True,
) -> tuple[list[SlotPlan], list[FailedJob]]:
    """Return how the slots of jobs are to be accounted for, and the jobs whose definition cannot be
    read.

    Reads who holds the keys, unless ``read_keys`` is false: then all are taken to be free.
    """
    owed, unreadable = [], []
    for job in jobs:
        try:
            owed.append(slot_plan.owed_slots(job, now, is_closing))
        except ScheduleError as error:
            # written by a version of yamlsched or of the time zone data that knew more; the other
            # jobs continue
            unreadable.append(FailedJob(job.job_type, str(error)))
            if is_closing:
                owed.append(slot_plan.owed_by_unreadable(job, now))
    keys = [candidate.key for job in owed for candidate in job.candidates] if read_keys else []
    holders = key_holders(connection, namespace, keys) if keys else {}
    return [
        slot_plan.decide(namespace, job, open_slots.get(job.definition.id), holders) for job in owed
    ], unreadable


def _write(
    connection: Connection[Any],
    namespace: str,
    locked: Sequence[Definition],
    now: datetime,
    is_closing: bool,
    read_keys: bool,
) -> DueResult:
    """Write what accounts for the slots of locked definitions.

    While the server writes one part, the next is planned. Keys are rarely in use: they are read
    (``read_keys``) only after an insert has found one in use.
    """
    result, inserted = DueResult(), []
    upstreams = followed(connection, namespace, locked)
    open_slots = earliest_open_slots(connection, namespace, [job.id for job in locked])
    decided: set[int] = set()
    if not is_closing:
        locked = [job for job in locked if not is_waiting(job, open_slots)]
    with connection.pipeline():
        for start in range(0, len(locked), PIPELINE_JOBS):
            part = locked[start : start + PIPELINE_JOBS]
            plans, unreadable = plan_slots(
                connection, namespace, part, open_slots, now, is_closing, read_keys
            )
            runs = [run for plan in plans for run in plan.runs]
            gaps = [gap for plan in plans for gap in plan.gaps]
            inserted += create_runs(connection, runs, namespace, now)
            record_gaps(connection, gaps, now)
            if upstreams:
                await_upstreams(connection, namespace, part, runs, upstreams, now)
            move_cursors(connection, [plan.move for plan in plans])
            decided |= {run.definition_id for run in runs} | {gap.definition_id for gap in gaps}
            result.add(DueResult(len(runs), gaps, unreadable))
        if decided:
            wake_followers(connection, namespace, decided, now)
        if result.runs:
            notify_workers(connection, namespace)
    if sum(cursor.rowcount for cursor in inserted) != result.runs:
        raise _KeyConflict
    return result
