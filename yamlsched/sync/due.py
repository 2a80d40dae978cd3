"""Carrying out plans: the slots that are due, in batches, and what a definition owes before it is changed."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from yamlsched import log
from yamlsched.errors import Refused, ScheduleError
from yamlsched.store import definitions
from yamlsched.store import slots as store
from yamlsched.store.connection import reason
from yamlsched.store.definitions import Definition
from yamlsched.store.slots import Gap
from yamlsched.sync import slot_plan

if TYPE_CHECKING:
    from psycopg import Connection

BATCH_JOBS = 1000
"""Definitions of one transaction: enough to share a commit, and so few that it takes a tenth of a second."""
STEPS = ((BATCH_JOBS, timedelta(seconds=1)), (25, timedelta(milliseconds=100)), (1, timedelta(milliseconds=100)))
"""Definitions of one transaction, and how long it waits for a lock, such as on a key that another session has inserted
and not committed: at first, after a batch has failed, and after a part of that has failed."""
PIPELINE_JOBS = 250
"""Definitions whose writing is sent at once."""
MAX_TRIES = 10
MAX_REPORTED = 20


class Unreadable(NamedTuple):
    """A stored definition that this release or its time zone data cannot read."""

    job_type: str
    reason: str


@dataclass
class DueResult:
    """What became of due slots.

    ``blocked`` are jobs whose slots could not be written, with the reason; ``left`` is how many jobs are left to the
    next sync, because the time was over.
    """

    runs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    blocked: list[Unreadable] = field(default_factory=list)
    left: int = 0

    def add(self, other: DueResult) -> None:
        self.runs += other.runs
        self.gaps += other.gaps
        self.unreadable += other.unreadable
        self.blocked += other.blocked

    @property
    def problems(self) -> list[str]:
        """What needs attention, one line per job."""
        lines = [
            f'job "{job}" is not scheduled: this release cannot read its stored definition: {why}. Correct its entry '
            "in schedules.yaml and sync, or upgrade yamlsched and tzdata on this host"
            for job, why in self.unreadable
        ]
        lines += [
            f'job "{job}": its due slots could not be written: {why}. The next tick tries again'
            for job, why in self.blocked
        ]
        more = len(lines) - MAX_REPORTED
        return lines if more <= 0 else [*lines[:MAX_REPORTED], f"{more} more jobs are not scheduled"]


class _KeyConflict(Exception):
    """An insert found a key in use: the batch is tried again, with the keys read first."""


def account_for_due_slots(
    connection: Connection[Any], namespace: str, now: datetime | None, deadline: float = float("inf")
) -> DueResult:
    """Account for all slots that are due: one transaction for each batch of definitions.

    A sync at work on the same namespace at the same time loses nothing and doubles nothing: each leaves to the other
    what the other has locked. A definition whose slots cannot be written holds up no other: what fails is done again
    in smaller parts, after everything else. No transaction is started after ``deadline``, in seconds of the monotonic
    clock.
    """
    result = DueResult()
    todo = deque((ids, 0) for ids in _parts(store.due_jobs(connection, namespace, now), 0))
    while todo and time.monotonic() <= deadline:
        ids, step = todo.popleft()
        try:
            batch = _batch(connection, namespace, ids, now, STEPS[step][1])
        except (psycopg.Error, _KeyConflict) as error:
            if connection.closed:
                raise
            if len(ids) > 1:
                # in random order: if there is no time for all, the others have their turn at one of the next ticks
                todo.extend((part, step + 1) for part in _parts(random.sample(ids, len(ids)), step + 1))
                continue
            [job] = definitions.names_of(connection, ids)
            batch = DueResult(blocked=[Unreadable(job, _why_blocked(error))])
        _log(batch)
        result.add(batch)
    result.left = sum(len(ids) for ids, _ in todo)
    if result.left:
        log.warning("sync.unfinished", jobs=result.left)
    return result


def _parts(ids: Sequence[int], step: int) -> Iterator[Sequence[int]]:
    size = STEPS[step][0]
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _why_blocked(error: Exception) -> str:
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "another session holds a lock on its rows or on a key"
    if isinstance(error, psycopg.Error):
        return reason(error)
    return "its keys still conflict with other sessions after several attempts"


def _batch(
    connection: Connection[Any], namespace: str, ids: Sequence[int], now: datetime | None, wait: timedelta
) -> DueResult:
    tries = 0
    while True:
        try:
            with connection.transaction():
                instant = store.start_batch(connection, now, wait)
                locked = store.lock_due_jobs(connection, ids, instant)
                return _write(connection, namespace, locked, instant, is_closing=False, check_keys=tries > 0)
        except _KeyConflict:
            tries += 1
            if tries == MAX_TRIES:
                raise


def account_for_owed(
    connection: Connection[Any], namespace: str, locked: Sequence[Definition], now: datetime
) -> DueResult:
    """Account for all that locked definitions owe up to ``now``, as they are, inside the caller's transaction.

    Without a cap and without waiting: with ``overlap: wait`` it creates runs that then execute one after the other.
    """
    for attempt in range(MAX_TRIES):
        try:
            with connection.transaction():
                result = _write(connection, namespace, locked, now, is_closing=True, check_keys=attempt > 0)
        except _KeyConflict:
            continue
        _log(result)
        return result
    raise Refused(
        f"keys of owed slots in namespace {namespace} still conflict with other sessions "
        "after several attempts: try again"
    )


def account_for_owed_slots(
    connection: Connection[Any], namespace: str, ids: Sequence[int], now: datetime | None
) -> tuple[datetime, list[Definition], DueResult]:
    """Lock and settle definitions; return the instant up to which that holds, and the definitions as they are then."""
    locked = definitions.lock(connection, ids)
    instant = store.start_batch(connection, now)
    result = account_for_owed(connection, namespace, locked, instant)
    return instant, definitions.lock(connection, ids), result


def _write(
    connection: Connection[Any],
    namespace: str,
    locked: Sequence[Definition],
    now: datetime,
    is_closing: bool,
    check_keys: bool,
) -> DueResult:
    """Write what accounts for the slots of locked definitions.

    While the server writes one part, the next is planned. Keys are rarely in use: they are read
    (``check_keys``) only after an insert has found one in use.
    """
    result = DueResult()
    inserted, moved, moves = [], [], 0
    earliest_open_slots = store.earliest_open_slots(connection, namespace, [definition.id for definition in locked])
    if not is_closing:
        locked = [d for d in locked if d.overlap != "wait" or d.id not in earliest_open_slots]
    with connection.pipeline():
        for start in range(0, len(locked), PIPELINE_JOBS):
            owed = list(_owed(locked[start : start + PIPELINE_JOBS], now, is_closing, result))
            keys = [key for o in owed for key, _ in o.candidates] if check_keys else []
            holders = store.key_holders(connection, namespace, keys) if keys else {}
            plans = [slot_plan.decide(o, earliest_open_slots.get(o.definition.id), holders) for o in owed]
            runs = [run for p in plans for run in p.runs]
            gaps = [gap for p in plans for gap in p.gaps]
            inserted += store.create_runs(connection, runs, namespace, now)
            store.record_gaps(connection, gaps, now)
            moved += store.move_cursors(connection, [p.move for p in plans])
            result.runs += len(runs)
            result.gaps += gaps
            moves += len(plans)
        if result.runs:
            store.notify_workers(connection, namespace)
    if sum(cursor.rowcount for cursor in inserted) != result.runs:
        raise _KeyConflict
    if sum(cursor.rowcount for cursor in moved) != moves:
        raise RuntimeError("a locked definition was changed by another session")
    return result


def _owed(
    locked: Iterable[Definition], now: datetime, is_closing: bool, result: DueResult
) -> Iterator[slot_plan.OwedSlots]:
    for definition in locked:
        try:
            yield slot_plan.owed_slots(definition, now, is_closing)
        except ScheduleError as error:
            # written by a yamlsched or time zone data that knew more; the other jobs go on
            result.unreadable.append(Unreadable(definition.job_type, str(error)))
            if is_closing:
                yield slot_plan.owed_by_unreadable(definition, now)


def _log(result: DueResult) -> None:
    for gap in result.gaps:
        log.info("slot.skipped", job=gap.job_type, first=gap.first, last=gap.last, slots=gap.slots, reason=gap.reason)
    for job, why in result.unreadable:
        log.error("slot.unreadable", job=job, error=why)
    for job, why in result.blocked:
        log.error("slot.blocked", job=job, error=why)
