"""Statements about what happened to a job over time: see ``sql/timeline.sql``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load

MAX_RUNS_OF_DAY = 100
"""Runs of one kind that are read for a day."""


@dataclass(frozen=True)
class DayOfJob:
    """How a job's runs ended in a span of time. The numbers are at most ``MAX_RUNS_OF_DAY``."""

    job_type: str
    nth: int
    dead: int
    retried: int  # succeeded after a failed attempt
    retrying: int  # have failed and are unfinished
    succeeded: bool
    cancelled: bool
    reasons: list[str]  # for which slots were skipped


@dataclass(frozen=True)
class JobFacts:
    """What a job is: the columns of its definition that people read."""

    id: int
    job_type: str
    description: str
    owner: str
    tags: list[str]
    handler: str | None
    command: list[str]
    schedule: str | None
    timezone: str
    max_attempts: int
    backoff: dict[str, Any]
    timeout: timedelta
    overlap: str
    catchup: str
    catchup_window: timedelta
    spread: timedelta
    on_dead: str | None
    enabled: bool
    priority: str
    executor: str
    isolation: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class SlotRun:
    """The run of a slot."""

    slot: datetime
    run_id: int
    key: str | None
    status: str
    attempts: int
    max_attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    error_type: str | None


@dataclass(frozen=True)
class GapRow:
    """A row of skipped_slots."""

    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str
    recorded_at: datetime


def days(
    connection: psycopg.Connection[Any],
    namespace: str,
    jobs: Mapping[str, str],
    spans: Mapping[str, Sequence[tuple[datetime, datetime]]],
) -> list[DayOfJob]:
    """Return what happened to each job in each span of its time zone; ``nth`` is the place of the span.

    ``jobs`` are time zones by the names of jobs.
    """
    flat = [(timezone, nth, *span) for timezone, parts in spans.items() for nth, span in enumerate(parts)]
    columns = ("span_zones", "nths", "starts", "ends")
    given: dict[str, Any] = {name: [row[place] for row in flat] for place, name in enumerate(columns)}
    given |= {"namespace": namespace, "jobs": list(jobs), "zones": list(jobs.values()), "limit": MAX_RUNS_OF_DAY}
    return fetch(connection, DayOfJob, load("timeline")["days"], given)


def job(connection: psycopg.Connection[Any], namespace: str, name: str) -> JobFacts | None:
    """Return what a job is; None if there is none of that name."""
    return next(iter(fetch(connection, JobFacts, load("timeline")["job"], {"namespace": namespace, "job": name})), None)


def runs_of_keys(connection: psycopg.Connection[Any], namespace: str, id: int, keys: Sequence[str]) -> list[SlotRun]:
    """Return the runs of a job's slots that have these keys."""
    return fetch(
        connection, SlotRun, load("timeline")["runs_of_keys"], {"namespace": namespace, "id": id, "keys": list(keys)}
    )


def runs_ended(
    connection: psycopg.Connection[Any], id: int, start: datetime, end: datetime, limit: int
) -> list[SlotRun]:
    """Return runs of a job's slots in [start, end) among the first ``limit`` that ended from ``start`` on."""
    given = {"id": id, "start": start, "end": end, "limit": limit}
    return fetch(connection, SlotRun, load("timeline")["runs_ended"], given)


def gaps(connection: psycopg.Connection[Any], id: int, start: datetime, end: datetime, limit: int) -> list[GapRow]:
    """Return the gaps of a job in [start, end), oldest first."""
    return fetch(connection, GapRow, load("timeline")["gaps"], {"id": id, "start": start, "end": end, "limit": limit})
