"""Reading what happened: runs with filters, and one run with all that belongs to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from psycopg.types.json import set_json_loads

from yamlsched.store.statements import load

Value = TypeVar("Value")


@dataclass(frozen=True)
class JobSummary:
    """A job as far as it is needed to choose it."""

    id: int
    job_type: str
    timezone: str
    tags: list[str]
    enabled: bool
    retired_at: datetime | None


@dataclass(frozen=True)
class RunRow:
    """A line of history."""

    id: int
    job_type: str
    key: str | None
    status: str
    attempts: int
    max_attempts: int
    scheduled_for: datetime | None
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    created_at: datetime
    worker: str | None
    last_error: str | None
    dead_run_id: int | None  # of a call of on_dead: the run that it reports
    cancelled_at_rest: bool  # no attempt was cut off: the time since the latest one began says nothing


@dataclass(frozen=True)
class StoredRun:
    """One run, and of its job what explains it."""

    id: int
    namespace: str
    job_type: str
    key: str | None
    status: str
    attempts: int
    max_attempts: int
    scheduled_for: datetime | None
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    failed_at: datetime | None
    created_at: datetime
    updated_at: datetime
    worker: str | None
    locked_until: datetime | None
    exclusive: bool
    payload: Any
    result: Any
    last_error: str | None
    error_type: str | None
    last_stack: str | None
    parent_id: int | None
    handler: str
    owner: str
    timezone: str
    enabled: bool
    retired_at: datetime | None
    paused: bool
    dead_run_id: int | None  # of a call of on_dead: the run that it reports
    cancelled_at_rest: bool


@dataclass(frozen=True)
class FailedAttempt:
    """A failed or lost attempt."""

    attempt: int
    worker: str
    started_at: datetime | None
    failed_at: datetime
    error: str
    error_type: str | None
    stack: str | None
    output: str | None


@dataclass(frozen=True)
class RunEffect:
    """An effect that the run began."""

    key: str
    state: str
    provider_key: str  # effect.key
    attempt: int
    result: Any
    claimed_at: datetime
    doubted_at: datetime | None  # of a done effect: in_doubt="skip" counted it as done
    done_at: datetime | None


@dataclass(frozen=True)
class ChildRun:
    """A run that the run's handler enqueued."""

    id: int
    job_type: str
    key: str | None
    status: str


@dataclass(frozen=True)
class OperatorAction:
    """What an operator did to the run."""

    at: datetime
    who: str
    verb: str
    detail: dict[str, Any]


def now(connection: psycopg.Connection[Any]) -> datetime:
    """Return the database's time."""
    return _column(connection, "now", {}, datetime)[0]


def namespaces(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the namespaces that have jobs or files."""
    return _column(connection, "namespaces", {}, str)


def namespace_of_file(connection: psycopg.Connection[Any], sha256: str, host: str, path: str) -> str | None:
    """Return the namespace of a file that some host presented with these bytes, or this host at this place."""
    found = _column(connection, "namespace_of_file", {"hash": sha256, "host": host, "path": path}, str)
    return found[0] if found else None


def jobs(connection: psycopg.Connection[Any], namespace: str) -> list[JobSummary]:
    """Return the jobs of ``namespace`` by name, those that left the file included."""
    return _all(connection, JobSummary, "jobs", {"namespace": namespace})


def runs(
    connection: psycopg.Connection[Any],
    namespace: str,
    *,
    limit: int,
    definitions: Sequence[int] | None = None,
    statuses: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    key: str | None = None,
    key_like: str | None = None,
    worker: str | None = None,
    before: int | None = None,
) -> list[RunRow]:
    """Return up to ``limit`` runs with an id below ``before``, newest first.

    ``key_like`` and ``worker`` are patterns of LIKE;
    ``since`` and ``until`` bound [since, until) when a run ended, else began, else is due.
    """
    parameters = {
        "namespace": namespace,
        "definition": definitions[0] if definitions is not None and len(definitions) == 1 else None,
        "definitions": list(definitions) if definitions is not None and len(definitions) != 1 else None,
        "statuses": list(statuses) or None,
        "only_dead": set(statuses) == {"dead"},
        "only_open": bool(statuses) and set(statuses) <= {"queued", "running", "failed"},
        "since": since,
        "until": until,
        "key": key,
        "key_like": key_like,
        "worker": worker,
        "before": before,
        "limit": limit,
    }
    return _all(connection, RunRow, "runs", parameters)


def id_of_key(connection: psycopg.Connection[Any], namespace: str, key: str) -> tuple[int, datetime | None] | None:
    """Return the id of the run that has or had ``key``, and when that run was pruned."""
    row = connection.execute(load("history")["id_of_key"], {"namespace": namespace, "key": key}).fetchone()
    return (row.id, row.pruned_at) if row else None


def run(connection: psycopg.Connection[Any], id: int) -> StoredRun | None:
    """Return a run. A payload or result that Python cannot read is its JSON text."""
    set_json_loads(_readable, connection)
    found = _all(connection, StoredRun, "run", {"id": id})
    return found[0] if found else None


def _readable(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode()


def failures(connection: psycopg.Connection[Any], id: int) -> list[FailedAttempt]:
    return _all(connection, FailedAttempt, "failures", {"id": id})


def effects(connection: psycopg.Connection[Any], id: int) -> list[RunEffect]:
    return _all(connection, RunEffect, "effects", {"id": id})


def children(connection: psycopg.Connection[Any], id: int, limit: int) -> list[ChildRun]:
    return _all(connection, ChildRun, "children", {"id": id, "limit": limit})


def actions(connection: psycopg.Connection[Any], namespace: str, id: int) -> list[OperatorAction]:
    return _all(connection, OperatorAction, "actions", {"namespace": namespace, "id": id})


def _all(
    connection: psycopg.Connection[Any], kind: type[Value], statement: str, parameters: dict[str, Any]
) -> list[Value]:
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(load("history")[statement], parameters).fetchall()


def _column(
    connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any], kind: type[Value]
) -> list[Value]:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(load("history")[statement], parameters).fetchall()
