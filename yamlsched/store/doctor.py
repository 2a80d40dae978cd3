"""What a self-check asks the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from yamlsched.store.statements import load

REQUIRED_PRIVILEGES = {
    "migrations": "SELECT",
    "namespaces": "SELECT,INSERT,UPDATE",
    "job_definitions": "SELECT,INSERT,UPDATE",
    "job_runs": "SELECT,INSERT,UPDATE,DELETE",
    "job_failures": "SELECT,INSERT",
    "skipped_slots": "SELECT,INSERT,UPDATE",
    "database_identity": "SELECT",
    "effects": "SELECT,INSERT,UPDATE,DELETE",
    "used_keys": "SELECT,INSERT,UPDATE,DELETE",
    "schedule_files": "SELECT,INSERT,UPDATE,DELETE",
    "operator_actions": "SELECT,INSERT",
}
"""What sync, work and tick need; granted to yamlsched_worker by sql/roles.sql."""


@dataclass(frozen=True)
class ServerInfo:
    """What the server says of itself and of this session."""

    version: int  # 150018 is 15.18
    version_text: str
    encoding: str
    timezone: str
    is_safe: bool
    is_durable: bool
    is_standby: bool
    is_read_only: bool
    isolation: str  # as it is set on the role or the database
    pid: int
    now: datetime
    who: str
    is_superuser: bool


def server(connection: psycopg.Connection[Any]) -> ServerInfo:
    with connection.cursor(row_factory=class_row(ServerInfo)) as cursor:
        [answer] = cursor.execute(load("doctor")["server"]).fetchall()
    return answer


def oldest_transaction(connection: psycopg.Connection[Any]) -> float | None:
    """Return for how many seconds the oldest transaction of another session has been open."""
    [row] = connection.execute(load("doctor")["oldest_transaction"]).fetchall()
    return None if row.seconds is None else float(row.seconds)


@dataclass(frozen=True)
class Standbys:
    """Servers that replicate this one, and whether a commit waits for one of them."""

    count: int
    is_synchronous: bool


def standbys(connection: psycopg.Connection[Any]) -> Standbys:
    with connection.cursor(row_factory=class_row(Standbys)) as cursor:
        [answer] = cursor.execute(load("doctor")["standbys"]).fetchall()
    return answer


def has_identity(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the database has its identity; see ``yamlsched db identity``."""
    return bool(connection.execute(load("identity")["identity"]).fetchall())


def missing_privileges(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the tables, with the privileges on them, that the session's role lacks."""
    parameters = {"tables": list(REQUIRED_PRIVILEGES), "privileges": list(REQUIRED_PRIVILEGES.values())}
    return [row.lacks for row in connection.execute(load("doctor")["privileges"], parameters).fetchall()]


def can_enqueue(connection: psycopg.Connection[Any]) -> bool:
    [row] = connection.execute(load("doctor")["can_enqueue"]).fetchall()
    return bool(row.can)


def can_read(connection: psycopg.Connection[Any]) -> bool:
    [row] = connection.execute(load("doctor")["can_read"], {"tables": list(REQUIRED_PRIVILEGES)}).fetchall()
    return bool(row.can)
