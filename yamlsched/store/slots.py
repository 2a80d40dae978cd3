"""Statements on slots, their runs and their gaps: see ``sql/slots.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from yamlsched.store import definitions
from yamlsched.store.definitions import Definition
from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

CHUNK_ROWS = 5000
"""Rows of one insert: settling a year of a minutely job must not build one message of half a million."""


class KeyHolder(NamedTuple):
    """Which slot of which job a key is, or was, the key of; an ad hoc run's has none. A pruned run has no status."""

    job_type: str
    scheduled_for: datetime | None
    run_id: int = 0
    status: str | None = None

    def is_of(self, job_type: str, slot: datetime) -> bool:
        """Say whether the key is that slot's own."""
        return (self.job_type, self.scheduled_for) == (job_type, slot)


class NewRun(NamedTuple):
    """A run to be made."""

    definition_id: int
    key: str
    slot: datetime
    run_at: datetime


class Gap(NamedTuple):
    """Slots that are not run. ``follows`` is the job's cursor if the gap begins right after it, else None."""

    definition_id: int
    job_type: str
    first: datetime
    last: datetime
    slots: int
    reason: str
    follows: datetime | None = None


class CursorMove(NamedTuple):
    """A definition's cursor before and after, and its next slot."""

    definition_id: int
    before: datetime | None
    last_slot_at: datetime | None
    next_slot_at: datetime | None


T = TypeVar("T")


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + CHUNK_ROWS] for start in range(0, len(values), CHUNK_ROWS))


def _array(values: Iterable[object]) -> str:
    """Return an array as PostgreSQL reads it: of numbers, instants, reasons and keys, none of which needs quotes.

    psycopg's own dumper takes half the time of a sync of ten thousand jobs.
    """
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def start_batch(connection: Connection[Any], now: datetime | None, wait: timedelta | None = None) -> datetime:
    """Prepare the transaction for work on a few hundred jobs by index, and return its instant.

    A statement that waits for a lock for longer than ``wait`` fails; None: as the session has it.
    """
    given = {"now": now, "wait": None if wait is None else f"{wait / timedelta(milliseconds=1):.0f}ms"}
    row = connection.execute(load("slots")["start_batch"], given).fetchone()
    assert row is not None
    instant: datetime = row.now
    return instant


def due_jobs(connection: Connection[Any], namespace: str, now: datetime | None) -> list[int]:
    """Return the ids of definitions that have a slot to account for and need not wait, the longest due first."""
    rows = connection.execute(load("slots")["due_jobs"], {"namespace": namespace, "now": now}).fetchall()
    return [row.id for row in rows]


def lock_due_jobs(connection: Connection[Any], ids: Sequence[int], now: datetime) -> list[Definition]:
    """Lock those of the definitions that are still due and that nobody else has locked."""
    rows = connection.execute(load("slots")["lock_due_jobs"], {"ids": _array(ids), "now": now}).fetchall()
    return definitions.read(connection, [row.id for row in rows])


def earliest_open_slots(connection: Connection[Any], namespace: str, ids: Iterable[int]) -> dict[int, datetime]:
    """Return, by definition, the earliest slot with an unfinished run that excludes others."""
    rows = connection.execute(
        load("slots")["earliest_open_slots"], {"namespace": namespace, "ids": _array(ids)}
    ).fetchall()
    return {row.id: row.slot for row in rows}


def key_holders(connection: Connection[Any], namespace: str, keys: Sequence[str]) -> dict[str, KeyHolder]:
    """Return what those of the keys belong to that are, or were, in use."""
    found = {}
    for chunk in _chunks(keys):
        given = {"namespace": namespace, "keys": _array(chunk)}
        for row in connection.execute(load("slots")["key_holders"], given):
            found[row.key] = KeyHolder(row.job_type, row.scheduled_for, row.run_id, row.status)
    return found


def create_runs(
    connection: Connection[Any], runs: Sequence[NewRun], namespace: str, now: datetime
) -> list[Cursor[Any]]:
    """Insert runs in order; the cursors' row counts tell how many. Those whose key is, or was, in use are left out."""
    return [
        connection.execute(
            load("slots")["create_runs"],
            {
                "ids": _array(run.definition_id for run in chunk),
                "keys": _array(run.key for run in chunk),
                "slots": _array(run.slot for run in chunk),
                "run_ats": _array(run.run_at for run in chunk),
                "namespace": namespace,
                "now": now,
            },
        )
        for chunk in _chunks(runs)
    ]


def notify_workers(connection: Connection[Any], namespace: str) -> None:
    """Let the workers that stay look for runs once the transaction has committed."""
    connection.execute(load("slots")["notify_workers"], {"namespace": namespace})


def record_gaps(connection: Connection[Any], gaps: Sequence[Gap], now: datetime) -> None:
    """Record gaps, or extend those that they continue."""
    for chunk in _chunks(gaps):
        connection.execute(
            load("slots")["record_gaps"],
            {
                "ids": _array(gap.definition_id for gap in chunk),
                "firsts": _array(gap.first for gap in chunk),
                "lasts": _array(gap.last for gap in chunk),
                "counts": _array(gap.slots for gap in chunk),
                "reasons": _array(gap.reason for gap in chunk),
                "follows": _array(gap.follows for gap in chunk),
                "now": now,
            },
        )


def move_cursors(connection: Connection[Any], moves: Sequence[CursorMove]) -> list[Cursor[Any]]:
    """Set cursors and next slots; the row counts tell how many definitions were as expected."""
    return [
        connection.execute(
            load("slots")["move_cursors"],
            {
                "ids": _array(move.definition_id for move in chunk),
                "befores": _array(move.before for move in chunk),
                "lasts": _array(move.last_slot_at for move in chunk),
                "nexts": _array(move.next_slot_at for move in chunk),
            },
        )
        for chunk in _chunks(moves)
    ]


def slot_history(
    connection: Connection[Any], namespace: str, definition: Definition, slot: datetime, keys: list[str]
) -> Any:
    """Return what became of one slot, as one row; ``keys`` are those that it may have had."""
    given = {"id": definition.id, "namespace": namespace, "job_type": definition.job_type, "slot": slot, "keys": keys}
    return connection.execute(load("slots")["slot_history"], given).fetchone()
