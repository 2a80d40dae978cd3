"""Statements that summarise runs that have ended: see ``sql/overview.sql``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


@dataclass(frozen=True)
class HourRow:
    """Runs that ended within one hour, and those of them that died."""

    hour: datetime
    ended: int
    dead: int


@dataclass(frozen=True)
class DeadGroup:
    """Dead runs of one job with errors of one type; "" if they have none. ``is_call``: of on_dead."""

    job_type: str
    timezone: str
    error_type: str
    is_call: bool
    runs: int
    first_at: datetime
    last_at: datetime
    example_id: int
    examined: int  # of the job
    total: int  # of all groups
    example_key: str | None
    example_error: str | None


def ended(
    connection: psycopg.Connection[Any], namespace: str, job: str | None, start: datetime, end: datetime, limit: int
) -> list[HourRow]:
    parameters = {"namespace": namespace, "job": job, "start": start, "end": end, "limit": limit}
    return fetch(connection, HourRow, load("overview")["ended"], parameters)


def dead_groups(
    connection: psycopg.Connection[Any], namespace: str, since: datetime | None, of_job: int, limit: int
) -> list[DeadGroup]:
    """Return the groups, the one whose latest run died last first."""
    parameters = {"namespace": namespace, "since": since or "-infinity", "of_job": of_job, "limit": limit}
    return fetch(connection, DeadGroup, load("overview")["dead_groups"], parameters)
