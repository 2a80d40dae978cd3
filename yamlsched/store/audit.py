"""Reading the audit trail, and marking the transactions of forms; see ``sql/audit.sql``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


@dataclass(frozen=True)
class TrailEntry:
    """An action of an operator. ``by_form``: it was done on the web page, which knows who asked for it."""

    id: int
    at: datetime
    who: str
    verb: str
    target: str
    job_type: str | None
    detail: dict[str, Any]
    by_form: bool


@dataclass(frozen=True)
class Pause:
    """A pause that is in effect, and how many runs wait for its end."""

    job_type: str
    timezone: str
    paused_at: datetime
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    next_slot_at: datetime | None
    runs: int


def trail(
    connection: psycopg.Connection[Any],
    namespace: str,
    *,
    limit: int,
    verb: str | None = None,
    who: str | None = None,
    job_type: str | None = None,
    target: str | None = None,
    before: int | None = None,
) -> list[TrailEntry]:
    """Return up to ``limit`` actions with an id below ``before``, newest first."""
    parameters = {"namespace": namespace, "verb": verb, "who": who, "job_type": job_type, "target": target}
    return fetch(connection, TrailEntry, load("audit")["trail"], {**parameters, "before": before, "limit": limit})


def rest_of_action(
    connection: psycopg.Connection[Any],
    namespace: str,
    entry: TrailEntry,
    since: datetime,
    limit: int,
    *,
    verb: str | None = None,
    who: str | None = None,
    job_type: str | None = None,
    target: str | None = None,
) -> tuple[int, int]:
    """Return how many entries after ``entry`` belong to its action, and the id of the last one.

    They are of the same person, verb, job and reason, and not older than ``since``. At most ``limit`` are examined.
    """
    parameters: dict[str, Any] = {"namespace": namespace, "verb": verb, "who": who, "job_type": job_type}
    parameters |= {"target": target, "of_who": entry.who, "of_verb": entry.verb, "of_job_type": entry.job_type}
    parameters |= {"of_reason": entry.detail.get("reason"), "since": since, "before": entry.id, "limit": limit}
    [row] = connection.execute(load("audit")["rest_of_action"], parameters).fetchall()
    return row.entries, row.last_id or entry.id


def latest(connection: psycopg.Connection[Any], namespace: str, target: str) -> TrailEntry | None:
    """Return the latest action on ``target``."""
    found = fetch(connection, TrailEntry, load("audit")["latest"], {"namespace": namespace, "target": target})
    return next(iter(found), None)


def of_request(connection: psycopg.Connection[Any], request: str, limit: int) -> list[TrailEntry]:
    """Return up to ``limit`` actions that the form ``request`` has done, in their order."""
    return fetch(connection, TrailEntry, load("audit")["of_request"], {"request": request, "limit": limit})


def start_request(connection: psycopg.Connection[Any], request: str, lock: str) -> None:
    """Let the caller's transaction carry out the form ``request``, after all others with the same ``lock``."""
    connection.execute(load("audit")["start_request"], {"request": request, "lock": lock})


def pauses(connection: psycopg.Connection[Any], namespace: str, now: datetime, limit: int) -> list[Pause]:
    """Return the pauses that are in effect, the latest first; of each at most ``limit`` + 1 runs are counted."""
    return fetch(connection, Pause, load("audit")["pauses"], {"namespace": namespace, "now": now, "limit": limit})
