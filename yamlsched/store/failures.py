"""Statements about failures by job and type of error: see ``sql/failures.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


@dataclass(frozen=True)
class FailureGroup:
    """Runs of one job whose latest errors are of one type; "" if they have none. ``is_call``: calls of on_dead.

    ``runs`` are ``dead``, ``failing`` (unfinished), ``recovered`` (succeeded since), or cancelled.
    """

    job_type: str
    timezone: str
    error_type: str
    is_call: bool
    runs: int
    dead: int
    failing: int
    recovered: int
    attempts: int  # that failed; at least the number of runs
    first_at: datetime
    last_at: datetime
    example_id: int
    examined: int  # of the job
    total: int  # of all groups
    example_key: str | None
    example_error: str | None
    hosts: list[str]  # of the latest attempts of its runs: four at most


@dataclass(frozen=True)
class FailedAttempts:
    """How many attempts of a job failed with errors of one type; "" if they have none."""

    job_type: str
    error_type: str
    attempts: int


def groups(
    connection: psycopg.Connection[Any],
    namespace: str,
    definitions: Sequence[int] | None,
    since: datetime | None,
    until: datetime | None,
    *,
    only_dead: bool,
    of_job: int,
    limit: int,
) -> list[FailureGroup]:
    """Return the groups of [since, until), the one with the latest failure first. None: no limit."""
    given = {
        "namespace": namespace,
        "definitions": definitions,
        "since": since or "-infinity",
        "until": until or "infinity",
        "only_dead": only_dead,
        "of_job": of_job,
        "limit": limit,
    }
    return fetch(connection, FailureGroup, load("failures")["groups"], given)


def attempts(
    connection: psycopg.Connection[Any], definitions: Sequence[int], since: datetime, of_job: int
) -> list[FailedAttempts]:
    """Return the failed attempts of the latest ``of_job`` failed runs of each job, the most frequent type first."""
    given = {"definitions": list(definitions), "since": since, "of_job": of_job}
    return fetch(connection, FailedAttempts, load("failures")["attempts"], given)
