"""Carrying out plans: the slots that are due, in batches, and what a definition owes before it is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yamlsched import log
from yamlsched.errors import CronError
from yamlsched.store import definitions
from yamlsched.store import slots as store
from yamlsched.store.definitions import Definition
from yamlsched.store.slots import Gap
from yamlsched.sync import plan

if TYPE_CHECKING:
    from psycopg import Connection

BATCH = 1000
"""Definitions of one transaction: enough to share a commit, and so few that it takes a tenth of a second."""
PART = 250
"""Definitions whose writing is sent at once."""
TRIES = 10


@dataclass
class Made:
    """What became of due slots."""

    runs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def add(self, other: Made) -> None:
        self.runs += other.runs
        self.gaps += other.gaps
        self.unreadable += other.unreadable


class _KeyTaken(Exception):
    """A key is in use that we did not know of: everything is done again, after a look at the keys."""


def make_due(connection: Connection[Any], namespace: str, now: datetime | None) -> Made:
    """Account for all slots that are due: one transaction for each batch of definitions.

    A sync at work on the same namespace at the same time loses nothing and doubles nothing: each leaves to the other
    what the other has locked.
    """
    made = Made()
    due = store.due(connection, namespace, now)
    for start in range(0, len(due), BATCH):
        batch = _batch(connection, namespace, due[start : start + BATCH], now)
        _log(batch)
        made.add(batch)
    return made


def _batch(connection: Connection[Any], namespace: str, ids: Sequence[int], now: datetime | None) -> Made:
    for attempt in range(TRIES):
        try:
            with connection.transaction():
                instant = store.begin(connection, now)
                locked = store.lock_due(connection, ids, instant)
                return _account(connection, namespace, locked, instant, settling=False, look=attempt > 0)
        except _KeyTaken:
            continue
    raise RuntimeError(f"keys of due slots in namespace {namespace} are taken by others again and again")


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
    raise RuntimeError(f"keys of owed slots in namespace {namespace} are taken by others again and again")


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
        raise RuntimeError("a locked definition was moved by somebody else")
    return made


def _owed(locked: Iterable[Definition], now: datetime, settling: bool, made: Made) -> Iterator[plan.Owed]:
    for definition in locked:
        try:
            yield plan.owed(definition, now, settling)
        except (CronError, KeyError) as error:
            # written by a yamlsched or time zone data that knew more; the other jobs go on
            made.unreadable.append(f"{definition.job_type}: {error.args[0]}")


def _log(made: Made) -> None:
    for gap in made.gaps:
        log.info("slot.skipped", job=gap.job_type, first=gap.first, last=gap.last, slots=gap.slots, reason=gap.reason)
    for text in made.unreadable:
        log.error("slot.unreadable", error=text)
