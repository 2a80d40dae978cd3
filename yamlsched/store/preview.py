"""What a plan reads, and nothing that it could write: see ``sql/preview.sql``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from yamlsched.definitions.job import Job, from_row
from yamlsched.store.definitions import Definition
from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedDefinition(Definition):
    """A whole row of job_definitions."""

    job: Job
    paused_by: str | None
    paused_reason: str | None


@contextmanager
def snapshot(connection: Connection[Any]) -> Iterator[None]:
    """Let what is done inside see one state of the database and change nothing; always rolled back."""
    with connection.transaction():
        connection.execute(load("preview")["begin"])
        yield
        raise psycopg.Rollback


def now(connection: Connection[Any], given: datetime | None) -> datetime:
    """Return the instant that is given, else the database's."""
    row = connection.execute(load("preview")["now"], {"now": given}).fetchone()
    assert row is not None
    instant: datetime = row.now
    return instant


def definitions(connection: Connection[Any], namespace: str) -> list[AppliedDefinition]:
    """Return all jobs of a namespace, by name."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(load("preview")["definitions"], {"namespace": namespace})
        rows = cursor.fetchall()
    names = [field.name for field in fields(AppliedDefinition) if field.name != "job"]
    return [AppliedDefinition(job=from_row(row), **{name: row[name] for name in names}) for row in rows]


def unfinished(connection: Connection[Any], namespace: str, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return, by definition, how many runs are unfinished, and how many of these are running."""
    rows = connection.execute(load("preview")["unfinished"], {"namespace": namespace, "ids": list(ids)})
    return {row.definition_id: (row.runs, row.running) for row in rows}


def retention(connection: Connection[Any], namespace: str) -> dict[str, str] | None:
    """Return what the file in force keeps, durations as text; None without one."""
    row = connection.execute(load("preview")["retention"], {"namespace": namespace}).fetchone()
    return row.retention if row else None


def other_namespaces(connection: Connection[Any], namespace: str, host: str, path: str) -> list[str]:
    """Return the other namespaces to which a file of this place was applied."""
    given = {"namespace": namespace, "host": host, "path": path}
    return [row.namespace for row in connection.execute(load("preview")["other_namespaces"], given)]
