"""Statements on job_definitions: see ``sql/definitions.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from yamlsched.db.query import Connection, execute, fetch, fetch_column
from yamlsched.schedule.job import DEFAULT_ROW, Job, to_row


@dataclass(frozen=True, slots=True)
class Definition:
    """What decides a job's slots, as stored. The cursor is ``last_slot_at``: slots up to it are
    accounted for.

    Its fields are the columns of the statement ``read``.
    """

    id: int
    job_type: str
    schedule: str | None
    timezone: str
    enabled: bool
    overlap: str
    catchup: str
    catchup_window: timedelta
    spread: timedelta
    after: list[str]
    created_at: datetime
    effective_from: datetime
    last_slot_at: datetime | None = None
    next_slot_at: datetime | None = None
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    retired_at: datetime | None = None
    skip_on: list[dict[str, Any]] = field(default_factory=list)
    only_on: list[dict[str, Any]] = field(default_factory=list)
    paused_by: str | None = None
    paused_reason: str | None = None

    def is_paused(self, now: datetime) -> bool:
        """Return whether a pause of the job is in effect."""
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > now)

    @property
    def accounted_to(self) -> datetime:
        """The instant after which slots are owed."""
        return max(self.effective_from, self.last_slot_at or self.effective_from)


@dataclass(frozen=True, slots=True)
class Difference:
    """One job in which a file and the database differ. ``id`` is None for one that the database
    does not know.
    """

    id: int | None
    job_type: str
    change: str  # what the file does to it: added, changed, retired or returned


def differences(
    connection: Connection, namespace: str, jobs: Mapping[str, Job]
) -> list[Difference]:
    """Return the jobs that applying ``jobs`` would change, by name."""
    return fetch(
        connection, Difference, "definitions.differences", **_file_parameters(namespace, jobs)
    )


def same_programs(connection: Connection, namespace: str, jobs: Mapping[str, Job]) -> list[str]:
    """Return the names of the ``jobs`` whose attempts would execute the same by the file in use."""
    parameters = _file_parameters(namespace, jobs)
    return fetch_column(connection, "definitions.same_programs", **parameters)


def _file_parameters(namespace: str, jobs: Mapping[str, Job]) -> dict[str, Any]:
    rows = list(map(to_row, jobs.values()))
    return {"namespace": namespace, "jobs": Jsonb(rows), "defaults": Jsonb(DEFAULT_ROW)}


def read(connection: Connection, ids: Sequence[int]) -> list[Definition]:
    """Return definitions, in the order of their ids."""
    parameters = {"ids": ids, "namespace": None, "names": None}
    return fetch(connection, Definition, "definitions.read", **parameters)


def named(connection: Connection, namespace: str, names: Iterable[str]) -> list[Definition]:
    """Return the definitions of jobs by their names, in the order of their ids."""
    parameters = {"ids": None, "namespace": namespace, "names": list(names)}
    return fetch(connection, Definition, "definitions.read", **parameters)


def lock(connection: Connection, ids: Iterable[int]) -> list[Definition]:
    """Lock definitions until the transaction ends, and return them as they are then."""
    locked = fetch_column(connection, "definitions.lock", ids=list(ids))
    return read(connection, locked)


def find(connection: Connection, namespace: str, job_type: str) -> Definition | None:
    """Return one definition."""
    return next(iter(named(connection, namespace, [job_type])), None)


def names(connection: Connection, namespace: str) -> list[str]:
    """Return the names of the jobs that are not retired, in order."""
    return fetch_column(connection, "definitions.names", namespace=namespace)


def followers(connection: Connection, namespace: str, ids: Iterable[int]) -> list[int]:
    """Return the ids of the jobs that follow these, also by way of others."""
    parameters = {"namespace": namespace, "ids": list(ids)}
    return fetch_column(connection, "follow.followers", **parameters)


def limits(connection: Connection, namespace: str) -> dict[str, int]:
    """Return the limits of the file in use."""
    return {
        row.name: row.capacity
        for row in execute(connection, "definitions.limits", namespace=namespace)
    }


def cancel_retired(
    connection: Connection, namespace: str, now: datetime | None, limit: int = 1_000
) -> list[Any]:
    """Cancel a batch of what jobs retired a day ago have left undone; return the runs."""
    values = {"namespace": namespace, "now": now}
    with connection.transaction():
        runs = execute(connection, "definitions.cancel_retired", **values, limit=limit).fetchall()
        execute(connection, "runs.release", **values, ids=[run.id for run in runs], reported=[])
    return runs
