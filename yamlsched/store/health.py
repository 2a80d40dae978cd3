"""Reading the health of a namespace, in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load

MAX_EFFECTS_IN_DOUBT = 100
"""Effects in doubt that are read; all are counted."""


class JobHealth(NamedTuple):
    """A row of the view job_health, and how many runs of the job died recently.

    A tuple, because a namespace may have 10,000 of them: a frozen dataclass takes three times as long.
    """

    job_type: str
    description: str
    owner: str
    tags: list[str]
    schedule: str | None
    timezone: str
    enabled: bool
    retired_at: datetime | None
    paused: bool
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    next_slot_at: datetime | None
    last_slot_at: datetime | None
    effective_from: datetime
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_failure_run_id: int | None
    last_error: str | None
    last_error_type: str | None
    failure_streak: int
    attempt_streak: int  # failed attempts of these runs
    failing: int  # unfinished runs with a failed attempt
    queued: int
    running: int
    failed: int
    oldest_due_at: datetime | None
    open_slot_run_id: int | None
    overdue_since: datetime | None
    overdue_why: str | None
    dead_within: int
    dead_last_hour: int
    dead_last_day: int
    dead_error: str | None  # of the run in dead_within that died last
    dead_error_type: str | None


@dataclass(frozen=True)
class StuckRun:
    """A run past its lease or its timeout."""

    run_id: int
    job_type: str
    worker: str
    started_at: datetime
    locked_until: datetime
    why: str


@dataclass(frozen=True)
class EffectInDoubt:
    """An effect of which it is unknown whether it happened. ``job_type`` is None if its run was pruned."""

    key: str
    provider_key: str  # effect.key
    run_id: int
    job_type: str | None
    run_status: str | None
    attempt: int
    since: datetime
    waits_for: str  # person or retry


@dataclass(frozen=True)
class PresentedFile:
    """A version of schedules.yaml that is in force, or that hosts presented most recently."""

    hash: str
    environment: str
    in_force: bool
    applied_at: datetime | None
    applied_by: str | None  # host:path
    yamlsched_version: str | None
    tzdata_version: str | None
    presented_since_at: datetime | None
    last_presented_at: datetime | None
    presented_by: list[str]  # host:path


@dataclass(frozen=True)
class RefusedFile:
    """A place whose file has errors and is not applied."""

    place: str  # host:path
    mistakes: int
    since: datetime


@dataclass(frozen=True)
class WorkerHost:
    """A host that holds runs, or finished one within the hour."""

    host: str
    running: int
    seen_at: datetime


@dataclass(frozen=True)
class Health:
    """The state of a namespace at an instant."""

    namespace: str
    now: datetime
    last_tick_at: datetime | None
    last_tick_host: str | None
    jobs: list[JobHealth]
    stuck: list[StuckRun]
    in_doubt: list[EffectInDoubt]  # at most MAX_EFFECTS_IN_DOUBT
    in_doubt_counts: dict[tuple[str | None, str], int]  # by job and what they wait for
    files: list[PresentedFile]
    refused: list[RefusedFile]
    workers: list[WorkerHost]


def read(connection: psycopg.Connection[Any], namespace: str, within: timedelta, job: str | None = None) -> Health:
    """Return the health of ``namespace``; ``dead_within`` counts the runs that died in the last ``within``.

    With ``job``, the others are not read.
    """
    sql = load("health")
    parameters = {"namespace": namespace, "within": within, "job": job, "limit": MAX_EFFECTS_IN_DOUBT}
    with connection.transaction():
        [clock] = connection.execute(sql["clock"], parameters).fetchall()
        return Health(
            namespace=namespace,
            now=clock.now,
            last_tick_at=clock.last_tick_at,
            last_tick_host=clock.last_tick_host,
            jobs=fetch(connection, JobHealth, sql["jobs"], parameters),
            stuck=fetch(connection, StuckRun, sql["stuck"], parameters),
            in_doubt=fetch(connection, EffectInDoubt, sql["in_doubt"], parameters),
            in_doubt_counts={
                (row.job_type, row.waits_for): row.effects
                for row in connection.execute(sql["in_doubt_counts"], parameters).fetchall()
            },
            files=fetch(connection, PresentedFile, sql["files"], parameters),
            refused=fetch(connection, RefusedFile, sql["refused"], parameters),
            workers=fetch(connection, WorkerHost, sql["workers"], parameters),
        )


@dataclass(frozen=True)
class EndedRuns:
    """Runs of a job that ended within the hour; their latest attempts took longer than ``bucket`` of the bounds."""

    job_type: str
    status: str
    bucket: int
    runs: int
    seconds: float


def ended(
    connection: psycopg.Connection[Any], namespace: str, bounds: Sequence[float], now: datetime
) -> list[EndedRuns]:
    """Return the runs that ended within the hour before ``now``, the database's time, by job, state and duration.

    ``bounds`` are seconds.
    """
    parameters = {"namespace": namespace, "bounds": [float(bound) for bound in bounds], "now": now}
    return fetch(connection, EndedRuns, load("health")["ended"], parameters)


def dead(connection: psycopg.Connection[Any], namespace: str) -> dict[str, int]:
    """Return the number of dead runs of each job that has any."""
    rows = connection.execute(load("health")["dead"], {"namespace": namespace}).fetchall()
    return {row.job_type: row.runs for row in rows}
