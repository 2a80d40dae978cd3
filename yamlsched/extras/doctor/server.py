"""What a self-check reads from the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg

from yamlsched.db.query import fetch, fetch_column, load

REQUIRED_PRIVILEGES = {
    "migrations": "SELECT",
    "namespaces": "SELECT,INSERT,UPDATE",
    "job_definitions": "SELECT,INSERT,UPDATE",
    "job_runs": "SELECT,INSERT,UPDATE,DELETE",
    "job_failures": "SELECT,INSERT",
    "attempt_outputs": "SELECT,INSERT,UPDATE",
    "attempt_progress": "SELECT,INSERT,UPDATE,DELETE",
    "attempt_begins": "SELECT,INSERT,UPDATE",
    "skipped_slots": "SELECT,INSERT,UPDATE",
    "database_identity": "SELECT",
    "effects": "SELECT,INSERT,UPDATE,DELETE",
    "used_keys": "SELECT,INSERT,UPDATE,DELETE",
    "schedule_files": "SELECT,INSERT,UPDATE,DELETE",
    "operator_actions": "SELECT,INSERT",
    "edits": "SELECT,INSERT",
    "edited_jobs": "SELECT,INSERT",
    "lacks": "SELECT,INSERT,UPDATE,DELETE",
}
"""What sync, work and tick need; granted to yamlsched_worker by sql/roles.sql."""


@dataclass(frozen=True)
class ServerInfo:
    """The server, and this session."""

    version: int  # 150018 is 15.18
    version_text: str
    encoding: str
    timezone: str
    is_safe: bool
    is_durable: bool
    is_standby: bool
    is_read_only: bool
    isolation: str  # the default of the role or the database
    pid: int
    now: datetime
    who: str
    is_superuser: bool


def server(connection: psycopg.Connection[Any]) -> ServerInfo:
    [info] = fetch(connection, ServerInfo, load("doctor")["server"])
    return info


def oldest_transaction(connection: psycopg.Connection[Any]) -> timedelta | None:
    """Return how long the oldest transaction of another session has been open."""
    [age] = fetch_column(connection, load("doctor")["oldest_transaction"])
    return cast("timedelta | None", age)


@dataclass(frozen=True)
class Standbys:
    """Servers that replicate this one, and whether a commit waits for one of them."""

    count: int
    is_synchronous: bool


def standbys(connection: psycopg.Connection[Any]) -> Standbys:
    [found] = fetch(connection, Standbys, load("doctor")["standbys"])
    return found


def identity(connection: psycopg.Connection[Any]) -> str | None:
    """Return the identity of the database; see ``yamlsched db identity``."""
    found = connection.execute(load("identity")["identity"]).fetchone()
    return None if found is None else str(found[0])


def has_identity(connection: psycopg.Connection[Any]) -> bool:
    return identity(connection) is not None


def missing_privileges(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the tables, with the privileges on them, that the session's role lacks."""
    parameters = {"tables": list(REQUIRED_PRIVILEGES), "privileges": list(REQUIRED_PRIVILEGES.values())}
    return fetch_column(connection, load("doctor")["privileges"], parameters)


def can_enqueue(connection: psycopg.Connection[Any]) -> bool:
    return fetch_column(connection, load("doctor")["can_enqueue"]) == [True]


def can_read(connection: psycopg.Connection[Any]) -> bool:
    return fetch_column(connection, load("doctor")["can_read"], {"tables": list(REQUIRED_PRIVILEGES)}) == [True]
