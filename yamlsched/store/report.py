"""Statements about a span of time, over all jobs: see ``sql/report.sql``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


class EndedOfJob(NamedTuple):
    """How the runs of a job ended in a span: the longest attempt, and the run that started latest after it was due.

    A tuple, as ``GapOfJob``, because there may be 10,000 of them: a frozen dataclass takes three times as long.
    ``examined`` is how many runs were read: as many as the limit if there may be more.
    """

    job_type: str
    timezone: str
    runs: int
    succeeded: int
    retried: int  # of these, after a failed attempt
    dead: int
    cancelled: int
    took: timedelta | None
    late: int
    late_by: timedelta | None
    late_id: int | None
    late_at: datetime | None
    examined: int


@dataclass(frozen=True)
class LongestOfJob:
    """The run of a job whose latest attempt took longest."""

    job_type: str
    timezone: str
    id: int
    took: timedelta
    finished_at: datetime


class GapOfJob(NamedTuple):
    """A gap of a job, which has ``schedule`` now."""

    job_type: str
    timezone: str
    schedule: str | None
    reason: str
    first_slot: datetime
    last_slot: datetime
    slots: int
    is_new: bool  # recorded within the span


@dataclass(frozen=True)
class RunningRun:
    """A run that is being executed."""

    id: int
    job_type: str
    timezone: str
    started_at: datetime


class JobLimits(NamedTuple):
    """A job with a limit of its own among its tags."""

    job_type: str
    tags: list[str]


class Jobs(NamedTuple):
    """How many jobs are enabled, and how many there are; the job whose slot comes next, if any, its zone, and when."""

    jobs: int
    in_all: int
    job_type: str | None
    timezone: str | None
    next_slot_at: datetime | None


def jobs(connection: psycopg.Connection[Any], namespace: str) -> Jobs:
    [found] = fetch(connection, Jobs, load("report")["jobs"], {"namespace": namespace})
    return found


def limits(connection: psycopg.Connection[Any], namespace: str) -> list[JobLimits]:
    """Return the jobs with a limit of their own, by name."""
    return fetch(connection, JobLimits, load("report")["limits"], {"namespace": namespace})


def ended(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime,
    until: datetime,
    max_late: timedelta,
    limits: Mapping[str, timedelta],
    of_job: int,
    of: Sequence[str] | None = None,
) -> list[EndedOfJob]:
    """Return the jobs of which runs ended in [since, until). ``limits`` are those of single jobs, for ``max_late``.

    With ``of``, their names, only these.
    """
    given: dict[str, Any] = {"namespace": namespace, "since": since, "until": until, "max_late": max_late}
    given |= {"jobs": list(limits), "limits": list(limits.values()), "of_job": of_job}
    given["of"] = None if of is None else list(of)
    return fetch(connection, EndedOfJob, load("report")["ended"], given)


def longest(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime,
    until: datetime,
    of_job: int,
    of: Sequence[str],
) -> list[LongestOfJob]:
    """Return the longest run of each of the jobs ``of``, the longest first; parameters are those of ``ended``."""
    given = {"namespace": namespace, "since": since, "until": until, "of_job": of_job, "of": list(of)}
    return fetch(connection, LongestOfJob, load("report")["longest"], given)


def skipped(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime, of_job: int
) -> list[GapOfJob]:
    given = {"namespace": namespace, "since": since, "until": until, "of_job": of_job}
    return fetch(connection, GapOfJob, load("report")["skipped"], given)


def running(connection: psycopg.Connection[Any], namespace: str, limit: int) -> list[RunningRun]:
    """Return the runs that have been running longest, those first."""
    return fetch(connection, RunningRun, load("report")["running"], {"namespace": namespace, "limit": limit})
