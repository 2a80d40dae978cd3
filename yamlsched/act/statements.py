"""What operators change. Each function executes one statement in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import fetch, fetch_column, load
from yamlsched.worker import tickets


@dataclass(frozen=True)
class LockedRun:
    """A locked run, and the columns of its job that decide whether it can be retried."""

    id: int
    namespace: str
    job_type: str
    status: str
    run_at: datetime
    locked_until: datetime | None
    held_until: datetime | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    enabled: bool
    retired_at: datetime | None
    paused: bool
    effect_in_doubt: str | None  # a key
    holds_up: list[str] | None  # runs that wait for it, with their jobs
    skipped: list[str] | None  # jobs that follow, whose slots are gaps because of it
    now: datetime


@dataclass(frozen=True)
class RunOutlook:
    """A run, and what decides what a retry or a cancel of it leads to."""

    id: int
    namespace: str
    job_type: str
    key: str | None
    status: str
    attempts: int
    max_attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    locked_until: datetime | None
    held_until: datetime | None
    last_error: str | None
    error_type: str | None
    payload: Any
    is_slot_run: bool
    is_on_dead_call: bool | None
    budget: int  # attempts that a retry adds
    on_dead: str | None
    overlap: str
    timezone: str
    enabled: bool
    retired_at: datetime | None
    paused: bool
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    running_run_id: int | None  # the run of this job that excludes others
    effects_done: int
    effects_in_doubt: list[str]  # keys
    now: datetime


@dataclass(frozen=True)
class PausableJob:
    """A job and its pause."""

    id: int
    job_type: str
    retired_at: datetime | None
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    now: datetime

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > self.now)


@dataclass(frozen=True)
class ActionRecord:
    """A row of the audit trail; the target is ``run:<id>`` or ``job:<name>``."""

    namespace: str
    target: str
    job_type: str
    detail: dict[str, Any]


def lock_jobs(connection: psycopg.Connection[Any], ids: Sequence[int]) -> None:
    """Lock the jobs of the runs ``ids`` against edits by a sync until the transaction ends."""
    connection.execute(load("actions")["lock_jobs"], {"ids": list(ids)})


def lock_runs(connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None) -> dict[int, LockedRun]:
    """Lock the runs ``ids`` until the transaction ends, and return them by id as they are then.

    What their agents have written is applied first: an outcome in a ticket is the end of its attempt.
    """
    connection.execute(load("actions")["lock_runs"], {"ids": list(ids)})
    tickets.apply_outcomes(connection, ids)
    rows = fetch(connection, LockedRun, load("actions")["run_states"], {"ids": list(ids), "now": now})
    return {row.id: row for row in rows}


def hand_on(connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None) -> None:
    """Let go what waited for the turn of the runs ``ids``, which this transaction has cancelled."""
    connection.execute(load("actions")["hand_on"], {"ids": ids, "now": now})


def retry(
    connection: psycopg.Connection[Any],
    ids: Sequence[int],
    expected: Sequence[str],
    force: bool,
    now: datetime | None,
    payload: str | None = None,
) -> set[int]:
    """Make the runs ``ids`` due that are in a state of ``expected`` and can be retried; return their ids.

    ``payload`` is JSON that replaces theirs; None keeps it.
    """
    parameters = {"ids": list(ids), "expected": list(expected), "force": force, "now": now, "payload": payload}
    retried = _ids(connection, "retry", parameters)
    if force:
        connection.execute(load("actions")["end_waits"], {"ids": list(retried), "now": now})
    return retried


def cancel(
    connection: psycopg.Connection[Any], ids: Sequence[int], expected: Sequence[str], now: datetime | None
) -> set[int]:
    """Cancel the runs ``ids`` that are unfinished and in a state of ``expected``; return their ids."""
    return _ids(connection, "cancel", {"ids": list(ids), "expected": list(expected), "now": now})


def jobs(connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None) -> list[PausableJob]:
    """Return the jobs ``ids`` by name."""
    return fetch(connection, PausableJob, load("actions")["jobs"], {"ids": list(ids), "now": now})


def outlook(connection: psycopg.Connection[Any], namespace: str, id: int) -> RunOutlook | None:
    """Return a run of ``namespace``, and what an action on it leads to."""
    rows = fetch(connection, RunOutlook, load("actions")["outlook"], {"namespace": namespace, "id": id})
    return next(iter(rows), None)


class MatchingRun(NamedTuple):
    """A run that an action is about."""

    id: int
    job_type: str


def matching(
    connection: psycopg.Connection[Any],
    namespace: str,
    filter: Mapping[str, Any],
    ids: Sequence[int] | None,
    limit: int,
) -> list[MatchingRun]:
    """Return the runs that match the parameters of a ``search.Filter``, or those among ``ids``, oldest first."""
    statuses = set(filter["statuses"])
    only = {"only_dead": statuses == {"dead"}, "only_open": statuses <= {"queued", "running", "failed"}}
    parameters = {**filter, **only, "namespace": namespace, "ids": ids, "limit": limit}
    return fetch(connection, MatchingRun, load("actions")["matching"], parameters)


def open_ids(
    connection: psycopg.Connection[Any],
    namespace: str,
    definition: int,
    statuses: Sequence[str],
    last: int | None,
    limit: int,
) -> list[int]:
    """Return the ids of the unfinished runs of a job that are in ``statuses``, up to ``last``, oldest first."""
    parameters = {"namespace": namespace, "definition": definition, "statuses": list(statuses), "last": last}
    return fetch_column(connection, load("actions")["open_ids"], {**parameters, "limit": limit})


def record(
    connection: psycopg.Connection[Any],
    who: str,
    verb: str,
    records: Sequence[ActionRecord],
    now: datetime | None = None,
) -> None:
    """Write the rows of the audit trail for an action of ``who``."""
    parameters = {
        "who": who,
        "verb": verb,
        "namespaces": [r.namespace for r in records],
        "targets": [r.target for r in records],
        "job_types": [r.job_type for r in records],
        "details": [json.dumps({k: v for k, v in r.detail.items() if v is not None}) for r in records],
        "now": now,
    }
    connection.execute(load("actions")["record"], parameters)


def wake(connection: psycopg.Connection[Any], namespaces: Iterable[str]) -> None:
    """Notify the waiting workers of ``namespaces``, once the transaction has committed."""
    connection.execute(load("actions")["wake"], {"namespaces": sorted(set(namespaces))})


def _ids(connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any]) -> set[int]:
    return set(fetch_column(connection, load("actions")[statement], parameters))
