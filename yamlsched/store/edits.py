"""Edits on record: the files that were applied, and how each changed the jobs. See ``sql/edits.sql``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from yamlsched.store.rows import fetch, fetch_column
from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection

CHANGES = ("added", "changed", "retired", "returned")
"""What a file does to a job."""


@dataclass(frozen=True)
class Edit:
    """A file that was applied.

    ``commit``, ``author`` and ``subject`` are None if they are not known; a dirty file differs from its commit.
    ``jobs`` has how many were added, changed, retired and returned, and the first names: ``{"added": {"jobs": 2,
    "first": ["a", "b"]}}``. ``before`` and ``after`` have the keys outside of jobs that changed; ``before`` is None
    for the first file of a namespace.
    """

    id: int
    namespace: str
    environment: str
    hash: str
    host: str
    path: str
    yamlsched_version: str
    commit: str | None
    is_dirty: bool
    author: str | None
    subject: str | None
    jobs: dict[str, dict[str, Any]]
    before: dict[str, Any] | None
    after: dict[str, Any]
    applied_at: datetime


@dataclass(frozen=True)
class ChangedAlike:
    """Jobs that an edit changed in the same way: how many, the first names, and the keys before and after.

    ``groups`` is how many such groups the edit has.
    """

    edit_id: int
    change: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    jobs: int
    first: list[str]
    groups: int


def definitions(connection: Connection[Any], ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return whole rows of job_definitions."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("edits")["definitions"], {"ids": list(ids)}).fetchall()


def latest_settings(connection: Connection[Any], namespace: str) -> dict[str, Any] | None:
    """Return what the file that was applied last says outside of its jobs; None if there is none."""
    return next(iter(fetch_column(connection, load("edits")["latest_settings"], {"namespace": namespace})), None)


def record(connection: Connection[Any], edit: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> int:
    """Record an edit, in the caller's transaction; return how many of ``jobs`` were recorded.

    ``edit`` has the columns that are not JSON as they are, and those that are as JSON values.
    """
    as_json = {name: Jsonb(edit[name]) for name in ("counts", "after", "settings")}
    before = None if edit["before"] is None else Jsonb(edit["before"])
    given = {**edit, **as_json, "before": before, "jobs": Jsonb(jobs)}
    return connection.execute(load("edits")["record"], given).rowcount


def edits(
    connection: Connection[Any],
    namespace: str,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
    job_type: str | None = None,
    before: int | None = None,
) -> list[Edit]:
    """Return up to ``limit`` edits of [since, until), newest first, that were applied before the edit ``before``."""
    filters = {"since": since, "until": until, "job_type": job_type, "before": before}
    return fetch(connection, Edit, load("edits")["edits"], {"namespace": namespace, "limit": limit, **filters})


def changes(
    connection: Connection[Any], ids: Sequence[int], *, limit: int, names: int, job_type: str | None = None
) -> list[ChangedAlike]:
    """Return how edits changed jobs: up to ``limit`` groups of each edit, with up to ``names`` names in each."""
    given = {"ids": list(ids), "limit": limit, "names": names, "job_type": job_type}
    return fetch(connection, ChangedAlike, load("edits")["changes"], given)


def in_force(
    connection: Connection[Any], namespace: str, at: datetime | None, job_type: str | None = None
) -> tuple[Edit | None, Edit | None]:
    """Return the edit in force for what was created at an instant (None: now), and the latest that changed a job."""
    given = {"namespace": namespace, "at": at, "job_type": job_type}
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = {row.pop("what"): row for row in cursor.execute(load("edits")["in_force"], given).fetchall()}
    of_file, of_job = (Edit(**rows[what]) if what in rows else None for what in ("file", "job"))
    return of_file, of_job
