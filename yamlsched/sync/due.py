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
from yamlsched.sync import plan

if TYPE_CHECKING:
    from psycopg import Connection

BATCH = 1000
"""Definitions of one transaction: enough to share a commit, and so few that it takes a tenth of a second."""
STEPS = ((BATCH, timedelta(seconds=1)), (25, timedelta(milliseconds=100)), (1, timedelta(milliseconds=100)))
"""Definitions of one transaction, and how long it waits for a lock, such as on a key that another session has inserted
and not committed: at first, after a batch has failed, and after a part of that has failed."""
PART = 250
"""Definitions whose writing is sent at once."""
TRIES = 10
MAX_REPORTED = 20


class Unreadable(NamedTuple):
    """A stored definition that this release or its time zone data cannot read."""

    job_type: str
    reason: str


@dataclass
class Made:
    """What became of due slots.

    ``blocked`` are jobs whose slots could not be written, with the reason; ``left`` is how many jobs are left to the
    next sync, because the time was over.
    """

    runs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    blocked: list[Unreadable] = field(default_factory=list)
    left: int = 0

    def add(self, other: Made) -> None:
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


class _KeyTaken(Exception):
    """A key is in use that we did not know of: everything is done again, after a look at the keys."""


def make_due(connection: Connection[Any], namespace: str, now: datetime | None, deadline: float = float("inf")) -> Made:
    """Account for all slots that are due: one transaction for each batch of definitions.

    A sync at work on the same namespace at the same time loses nothing and doubles nothing: each leaves to the other
    what the other has locked. A definition whose slots cannot be written holds up no other: what fails is done again
    in smaller parts, after everything else. No transaction is started after ``deadline``, in seconds of the monotonic
    clock.
    """
    made = Made()
    todo = deque((ids, 0) for ids in _parts(store.due(connection, namespace, now), 0))
    while todo and time.monotonic() <= deadline:
        ids, step = todo.popleft()
        try:
            batch = _batch(connection, namespace, ids, now, STEPS[step][1])
        except (psycopg.Error, _KeyTaken) as error:
            if connection.closed:
                raise
            if len(ids) > 1:
                # in random order: if there is no time for all, the others have their turn at one of the next ticks
                todo.extend((part, step + 1) for part in _parts(random.sample(ids, len(ids)), step + 1))
                continue
            [job] = definitions.names_of(connection, ids)
            batch = Made(blocked=[Unreadable(job, _why_blocked(error))])
        _log(batch)
        made.add(batch)
    made.left = sum(len(ids) for ids, _ in todo)
    if made.left:
        log.warning("sync.unfinished", jobs=made.left)
    return made


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
) -> Made:
    tries = 0
    while True:
        try:
            with connection.transaction():
                instant = store.begin(connection, now, wait)
                locked = store.lock_due(connection, ids, instant)
                return _account(connection, namespace, locked, instant, settling=False, look=tries > 0)
        except _KeyTaken:
            tries += 1
            if tries == TRIES:
                raise


def settle(connection: Connection[Any], namespace: str, locked: Sequence[Definition], now: datetime) -> Made:
    """Account for all that locked definitions owe up to ``now``, as they are, inside the caller's transaction.

    Without a cap and without waiting: with ``overlap: wait`` runs are made that then execute one after the other.
    """
    for attempt in range(TRIES):
        try:
            with connection.transaction():
                made = _account(connection, namespace, locked, now, settling=True, look=attempt > 0)
        except _KeyTaken:
            continue
        _log(made)
        return made
    raise Refused(
        f"keys of owed slots in namespace {namespace} still conflict with other sessions "
        "after several attempts: try again"
    )


def settle_by_id(
    connection: Connection[Any], namespace: str, ids: Sequence[int], now: datetime | None
) -> tuple[datetime, list[Definition], Made]:
    """Lock and settle definitions; return the instant up to which that holds, and the definitions as they are then."""
    locked = definitions.lock(connection, ids)
    instant = store.begin(connection, now)
    made = settle(connection, namespace, locked, instant)
    return instant, definitions.lock(connection, ids), made


def _account(
    connection: Connection[Any],
    namespace: str,
    locked: Sequence[Definition],
    now: datetime,
    settling: bool,
    look: bool,
) -> Made:
    """Write what accounts for the slots of locked definitions.

    While the server writes one part, the next is planned. Keys are hardly ever taken: they are looked at (``look``)
    only once an insert has found one in use.
    """
    made = Made()
    inserted, moved, moves = [], [], 0
    open_slots = store.open_slots(connection, namespace, [definition.id for definition in locked])
    if not settling:
        locked = [d for d in locked if d.overlap != "wait" or d.id not in open_slots]
    with connection.pipeline():
        for start in range(0, len(locked), PART):
            owed = list(_owed(locked[start : start + PART], now, settling, made))
            keys = [key for o in owed for key, _ in o.candidates] if look else []
            holders = store.holders(connection, namespace, keys) if keys else {}
            plans = [plan.decide(o, open_slots.get(o.definition.id), holders) for o in owed]
            runs = [run for p in plans for run in p.runs]
            gaps = [gap for p in plans for gap in p.gaps]
            inserted += store.make_runs(connection, runs, namespace, now)
            store.record_gaps(connection, gaps, now)
            moved += store.move_cursors(connection, [p.move for p in plans])
            made.runs += len(runs)
            made.gaps += gaps
            moves += len(plans)
        if made.runs:
            store.wake(connection, namespace)
    if sum(cursor.rowcount for cursor in inserted) != made.runs:
        raise _KeyTaken
    if sum(cursor.rowcount for cursor in moved) != moves:
        raise RuntimeError("a locked definition was changed by another session")
    return made


def _owed(locked: Iterable[Definition], now: datetime, settling: bool, made: Made) -> Iterator[plan.Owed]:
    for definition in locked:
        try:
            yield plan.owed(definition, now, settling)
        except ScheduleError as error:
            # written by a yamlsched or time zone data that knew more; the other jobs go on
            made.unreadable.append(Unreadable(definition.job_type, str(error)))
            if settling:
                yield plan.owed_by_unreadable(definition, now)


def _log(made: Made) -> None:
    for gap in made.gaps:
        log.info("slot.skipped", job=gap.job_type, first=gap.first, last=gap.last, slots=gap.slots, reason=gap.reason)
    for job, why in made.unreadable:
        log.error("slot.unreadable", job=job, error=why)
    for job, why in made.blocked:
        log.error("slot.blocked", job=job, error=why)
