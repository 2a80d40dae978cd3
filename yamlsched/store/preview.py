"""Everything that a plan reads; it writes nothing. See ``sql/preview.sql``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.rows import dict_row

from yamlsched.definitions.job import Job, from_row
from yamlsched.store.definitions import Definition
from yamlsched.store.rows import fetch_column
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
    """Execute the block in one read-only snapshot of the database; it is always rolled back."""
    with connection.transaction():
        connection.execute(load("preview")["begin"])
        yield
        raise psycopg.Rollback


def now(connection: Connection[Any], given: datetime | None) -> datetime:
    """Return the instant that is given, else the database's."""
    [instant] = fetch_column(connection, load("preview")["now"], {"now": given})
    return cast(datetime, instant)


def definitions(connection: Connection[Any], namespace: str) -> list[AppliedDefinition]:
    """Return all jobs of a namespace, by name."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(load("preview")["definitions"], {"namespace": namespace})
        rows = cursor.fetchall()
    names = [field.name for field in fields(AppliedDefinition) if field.name != "job"]
    return [AppliedDefinition(job=from_row(row), **{name: row[name] for name in names}) for row in rows]


def unfinished(connection: Connection[Any], namespace: str, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return, by definition id, the number of unfinished runs, and how many of them are running."""
    rows = connection.execute(load("preview")["unfinished"], {"namespace": namespace, "ids": list(ids)})
    return {row.definition_id: (row.runs, row.running) for row in rows}


def retention(connection: Connection[Any], namespace: str) -> dict[str, str] | None:
    """Return the stored retention of the file in force; None if there is none."""
    return next(iter(fetch_column(connection, load("preview")["retention"], {"namespace": namespace})), None)


def other_namespaces(connection: Connection[Any], namespace: str, host: str, path: str) -> list[str]:
    """Return the other namespaces to which a file of this host and path was applied."""
    parameters = {"namespace": namespace, "host": host, "path": path}
    return fetch_column(connection, load("preview")["other_namespaces"], parameters)
