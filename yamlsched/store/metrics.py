"""What ``metrics`` reads besides the health of a namespace: see ``sql/metrics.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


class JobValues(NamedTuple):
    """The values of a job's gauges. Instants are seconds since 1970, as they are printed."""

    definition_id: int
    job_type: str
    owner: str
    is_active: bool  # enabled, and not retired
    has_runs: bool  # not retired, or with unfinished or dead runs
    queued: int
    running: int
    failed: int
    dead: int  # without calls of on_dead
    late_seconds: float
    paused: int
    failure_streak: int
    attempt_streak: int
    failing: int
    last_success_at: str | None
    last_failure_at: str | None
    next_slot_at: str | None
    waits_seconds: float | None  # that its oldest due run has waited; None if none waits or it is paused
    has_ended: bool | None  # a run of it within the hour; None: none ever did
    has_failed: bool | None  # likewise, an attempt


class EndedRuns(NamedTuple):
    """Runs of a job that ended within the hour; their latest attempts took longer than ``bucket`` of the bounds."""

    job_type: str
    status: str
    is_call: bool  # of on_dead
    bucket: int
    runs: int
    seconds: float


def jobs(connection: psycopg.Connection[Any], namespace: str, now: datetime) -> list[JobValues]:
    """Return the values of each job, by name. ``now`` is the database's time."""
    return fetch(connection, JobValues, load("metrics")["jobs"], {"namespace": namespace, "now": now})


def ended(
    connection: psycopg.Connection[Any], definitions: Sequence[int], bounds: Sequence[float], now: datetime
) -> list[EndedRuns]:
    """Return the runs that ended within the hour before ``now``, the database's time, by job, state and duration.

    ``bounds`` are seconds.
    """
    given = {"definitions": list(definitions), "bounds": [float(bound) for bound in bounds], "now": now}
    return fetch(connection, EndedRuns, load("metrics")["ended"], given)
