"""Which files were presented and applied: see ``sql/deployments.sql``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


@dataclass(frozen=True)
class Place:
    """The file that a host presented last at a path for an environment ('' for none)."""

    id: int
    host: str
    path: str
    environment: str
    hash: str
    overrides_namespace: bool
    yamlsched_version: str
    tzdata_version: str
    presented_since_at: datetime
    last_presented_at: datetime
    applied_at: datetime | None
    refused_at: datetime | None
    mistakes: int | None
    errors: list[str]
    is_presented: bool


@dataclass(frozen=True)
class AppliedFile:
    """A file that was applied, the latest time by this place."""

    id: int
    host: str
    path: str
    environment: str
    hash: str
    applied_at: datetime
    overrides_namespace: bool
    yamlsched_version: str
    tzdata_version: str
    retention: dict[str, str]


@dataclass(frozen=True)
class ChangedJobs:
    """Jobs that were added, changed or retired: how many, and the first names."""

    change: str
    jobs: int
    first: list[str]


@dataclass(frozen=True)
class JobCounts:
    """How many jobs there are without retired ones, and how many of them are disabled."""

    jobs: int
    disabled: int


@dataclass(frozen=True)
class NamespaceInForce:
    """A namespace and its file in force, if it has one."""

    namespace: str
    environment: str | None
    host: str | None
    path: str | None
    hash: str | None
    applied_at: datetime | None


def places(connection: psycopg.Connection[Any], namespace: str, limit: int) -> list[Place]:
    """Return the latest file of each place."""
    return fetch(connection, Place, load("deployments")["places"], {"namespace": namespace, "limit": limit})


def applied(connection: psycopg.Connection[Any], namespace: str, limit: int) -> list[AppliedFile]:
    """Return the files that were applied, the one in force first."""
    return fetch(connection, AppliedFile, load("deployments")["applied"], {"namespace": namespace, "limit": limit})


def changed_since(connection: psycopg.Connection[Any], namespace: str, since: datetime) -> list[ChangedJobs]:
    """Return how files that were applied after ``since`` changed the jobs."""
    parameters = {"namespace": namespace, "since": since}
    return fetch(connection, ChangedJobs, load("deployments")["changed_since"], parameters)


def job_counts(connection: psycopg.Connection[Any], namespace: str) -> JobCounts:
    [counts] = fetch(connection, JobCounts, load("deployments")["jobs"], {"namespace": namespace})
    return counts


def namespaces(connection: psycopg.Connection[Any], limit: int) -> list[NamespaceInForce]:
    """Return the namespaces of the database by name."""
    return fetch(connection, NamespaceInForce, load("deployments")["namespaces"], {"limit": limit})
