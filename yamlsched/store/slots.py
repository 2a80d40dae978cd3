"""Statements on slots, their runs and their gaps: see ``sql/slots.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from yamlsched.store import definitions
from yamlsched.store.definitions import Definition
from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

CHUNK_ROWS = 5000
"""Rows of one insert: accounting for a year of a minutely job must not build one message of half a million."""


class KeyHolder(NamedTuple):
    """Which slot of which job a key belongs to, now or before; none for an ad hoc run. A pruned run has no status."""

    job_type: str
    scheduled_for: datetime | None
    run_id: int = 0
    status: str | None = None

    def is_of(self, job_type: str, slot: datetime) -> bool:
        """Return whether the key belongs to this slot."""
        return (self.job_type, self.scheduled_for) == (job_type, slot)


class NewRun(NamedTuple):
    """A run to create."""

    definition_id: int
    key: str
    slot: datetime
    run_at: datetime


class Gap(NamedTuple):
    """Slots that are not run. ``follows`` is the job's cursor if the gap starts right after it, else None."""

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
    """Return a PostgreSQL array literal of numbers, instants, reasons and keys, none of which needs quotes.

    psycopg's own dumper takes half the time of a sync of ten thousand jobs.
    """
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def _write(
    connection: Connection[Any], statement: str, rows: Sequence[NewRun | Gap | CursorMove], **given: Any
) -> list[Cursor[Any]]:
    """Execute a statement for rows in chunks: each field is a parameter of that name, an array."""
    sql = load("slots")[statement]
    cursors = []
    for chunk in _chunks(rows):
        columns = zip(chunk[0]._fields, map(_array, zip(*chunk, strict=True)), strict=True)
        cursors.append(connection.execute(sql, {**dict(columns), **given}))
    return cursors


def start_batch(
    connection: Connection[Any], now: datetime | None, lock_timeout_seconds: float | None = None
) -> datetime:
    """Prepare the transaction for work on a few hundred jobs by index, and return its instant.

    A statement that waits longer than the timeout for a lock fails; None: the timeout of the session.
    """
    timeout = None if lock_timeout_seconds is None else f"{lock_timeout_seconds * 1000:.0f}ms"
    [row] = connection.execute(load("slots")["start_batch"], {"now": now, "timeout": timeout}).fetchall()
    instant: datetime = row.now
    return instant


def due_jobs(connection: Connection[Any], namespace: str, now: datetime | None) -> list[int]:
    """Return the ids of definitions that have a slot to account for and need not wait, the longest due first."""
    rows = connection.execute(load("slots")["due_jobs"], {"namespace": namespace, "now": now}).fetchall()
    return [row.id for row in rows]


def lock_due_jobs(connection: Connection[Any], ids: Sequence[int], now: datetime) -> list[Definition]:
    """Lock those of the definitions that are still due and not locked by another session."""
    rows = connection.execute(load("slots")["lock_due_jobs"], {"ids": _array(ids), "now": now}).fetchall()
    return definitions.read(connection, [row.id for row in rows])


def earliest_open_slots(connection: Connection[Any], namespace: str, ids: Iterable[int]) -> dict[int, datetime]:
    """Return, by definition, the earliest slot with an unfinished run that excludes others."""
    given = {"namespace": namespace, "ids": _array(ids)}
    return {row.id: row.slot for row in connection.execute(load("slots")["earliest_open_slots"], given)}


def key_holders(connection: Connection[Any], namespace: str, keys: Sequence[str]) -> dict[str, KeyHolder]:
    """Return the holders of those keys that are, or were, in use."""
    found = {}
    for chunk in _chunks(keys):
        given = {"namespace": namespace, "keys": _array(chunk)}
        for row in connection.execute(load("slots")["key_holders"], given):
            found[row.key] = KeyHolder(row.job_type, row.scheduled_for, row.run_id, row.status)
    return found


def create_runs(
    connection: Connection[Any], runs: Sequence[NewRun], namespace: str, now: datetime
) -> list[Cursor[Any]]:
    """Insert runs in order, except those whose key is, or was, in use: the cursors' row counts show how many."""
    return _write(connection, "create_runs", runs, namespace=namespace, now=now)


def record_gaps(connection: Connection[Any], gaps: Sequence[Gap], now: datetime) -> None:
    """Record gaps, or extend those that they continue."""
    _write(connection, "record_gaps", gaps, now=now)


def move_cursors(connection: Connection[Any], moves: Sequence[CursorMove]) -> None:
    """Set the cursors and next slots of definitions that the caller has locked."""
    _write(connection, "move_cursors", moves)


def notify_workers(connection: Connection[Any], namespace: str) -> None:
    """Wake up continuous workers once the transaction has committed."""
    connection.execute(load("slots")["notify_workers"], {"namespace": namespace})


def slot_history(
    connection: Connection[Any], namespace: str, definition: Definition, slot: datetime, keys: list[str]
) -> Any:
    """Return what happened to one slot, as one row; ``keys`` are those that it may have had."""
    given = {"id": definition.id, "namespace": namespace, "job_type": definition.job_type, "slot": slot, "keys": keys}
    return connection.execute(load("slots")["slot_history"], given).fetchone()
