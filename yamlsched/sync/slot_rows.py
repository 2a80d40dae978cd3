"""Reading and writing what accounts for slots: see ``sql/slots.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from yamlsched.db.query import Connection, execute
from yamlsched.sync import slot_plan
from yamlsched.sync.definitions import Definition, named
from yamlsched.sync.slot_plan import AwaitedSlot, KeyHolder, NewRun

CHUNK_ROWS = 5000
"""Rows of one insert: a year of a minutely job must not be one statement of half a million, which
the server cancels after its timeout.
"""


def start_batch(
    connection: Connection, now: datetime | None, lock_timeout_seconds: float | None = None
) -> datetime:
    """Prepare the transaction for work on a few hundred jobs by index, and return its instant.

    A statement that waits longer than the timeout for a lock fails; None: the timeout of the
    session.
    """
    timeout = None if lock_timeout_seconds is None else f"{lock_timeout_seconds * 1000:.0f}ms"
    [row] = execute(connection, "slots.start_batch", now=now, timeout=timeout).fetchall()
    instant: datetime = row.now
    return instant


def earliest_open_slots(
    connection: Connection, namespace: str, ids: Sequence[int]
) -> dict[int, datetime]:
    """Return, by definition, the earliest slot with an unfinished run that excludes others."""
    rows = execute(connection, "slots.earliest_open_slots", namespace=namespace, ids=ids)
    return {row.id: row.slot for row in rows}


def key_holders(
    connection: Connection, namespace: str, keys: Sequence[str]
) -> dict[str, KeyHolder]:
    """Return the holders of those keys that are, or were, in use."""
    rows = execute(connection, "slots.key_holders", namespace=namespace, keys=keys)
    return {row.key: KeyHolder._make(row[1:5]) for row in rows}


def followed(
    connection: Connection, namespace: str, jobs: Iterable[Definition]
) -> dict[str, Definition]:
    """Return by name the jobs that ``jobs`` follow."""
    names = {name for job in jobs for name in job.after}
    return {job.job_type: job for job in named(connection, namespace, names)}


def await_upstreams(
    connection: Connection,
    namespace: str,
    jobs: Iterable[Definition],
    runs: Sequence[NewRun],
    upstreams: Mapping[str, Any],
    now: datetime,
) -> None:
    """Store what new runs wait for. ``upstreams`` is what ``followed`` returned, under the lock of
    ``jobs``.
    """
    after = {job.id: [upstreams[name] for name in job.after if name in upstreams] for job in jobs}
    rows = [
        AwaitedSlot(
            run.key,
            job.id,
            slot_plan.awaited_slot(job.schedule, job.timezone, job.effective_from, run.slot),
        )
        for run in runs
        for job in after[run.definition_id]
    ]
    write_rows(connection, "follow.await", rows, namespace=namespace, now=now)


def write_rows(
    connection: Connection, statement: str, rows: Sequence[NamedTuple], **values: Any
) -> int:
    """Execute a statement for rows: each field is a parameter of that name, an array. Return how
    many rows it wrote.
    """
    written = 0
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        arrays = map(list, zip(*chunk, strict=True))
        columns = dict(zip(chunk[0]._fields, arrays, strict=True))
        written += execute(connection, statement, **columns, **values).rowcount
    return written
