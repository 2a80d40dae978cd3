"""Failures by job and type of error, for ``report``, ``status``, ``runs`` and the web page. All
numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.db.query import fetch, load
from yamlsched.runs.lifecycle import error_text
from yamlsched.text import join_first


@dataclass(frozen=True)
class FailureGroup:
    """Runs of one job whose latest errors are of one type; "" if they have none. ``is_call``: calls
    of on_dead.

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
    # that of the first failure, if it is the first of its type, and the run before had another one
    since_revision: str | None


@dataclass(frozen=True)
class FailedAttempts:
    """How many attempts of a job failed with errors of one type; "" if they have none."""

    job_type: str
    error_type: str
    attempts: int


def failed_attempts(
    connection: psycopg.Connection[Any], definitions: Sequence[int], since: datetime, of_job: int
) -> list[FailedAttempts]:
    """Return the failed attempts of the latest ``of_job`` failed runs of each job, the most
    frequent type first.
    """
    parameters = {"definitions": list(definitions), "since": since, "of_job": of_job}
    return fetch(connection, FailedAttempts, load("failures")["attempts"], parameters)


MAX_OF_JOB, MAX_FAILED = 1_000, 5_000
"""Runs that are read, of one job and in all. Of one job, that many dead ones and that many others.
If there are more in all, those of the jobs that have most are read.
"""
NO_TYPE = "no error type"
MAX_HOSTS = 3


@dataclass(frozen=True)
class Failures:
    """Groups of failed runs. ``is_complete``: all were read, except for more than ``MAX_OF_JOB`` of
    one job.
    """

    groups: Sequence[FailureGroup]
    is_complete: bool

    def is_bounded(self, group: FailureGroup) -> bool:
        """Return whether there may be more runs of the group than were counted."""
        return group.examined >= MAX_OF_JOB or not self.is_complete

    def worst_first(self) -> list[FailureGroup]:
        """Return the groups, those of most dead runs first, then those of most failing ones, then
        the latest.
        """
        return sorted(
            self.groups,
            key=lambda group: (
                -group.dead,
                -group.failing,
                group.is_call,
                -group.last_at.timestamp(),
            ),
        )


def groups(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime | None,
    until: datetime | None = None,
    definitions: Sequence[int] | None = None,
    *,
    only_dead: bool = False,
) -> Failures:
    """Return the runs with a failed attempt in [since, until) by job and type of error, the latest
    failure first.

    With ``only_dead``, those that died in it. Without ``definitions``, of all jobs.
    """
    values: dict[str, Any] = {
        "namespace": namespace,
        "definitions": definitions,
        "only_dead": only_dead,
    }
    values |= {
        "since": since or "-infinity",
        "until": until or "infinity",
        "of_job": MAX_OF_JOB,
        "limit": MAX_FAILED,
    }
    groups = fetch(connection, FailureGroup, load("failures")["groups"], values)
    return Failures(groups, not groups or groups[0].total < MAX_FAILED)


@dataclass(frozen=True)
class DeadHour:
    """The runs that died in [at, until), of how many jobs, and the job and the type of error that
    most of them have.
    """

    at: datetime
    until: datetime
    runs: int
    jobs: int
    job_type: str
    error_type: str
    examined: int  # of all hours and types


def by_hour(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime | None,
    definitions: Sequence[int] | None = None,
    error_type: str | None = None,
) -> list[DeadHour]:
    """Return the hours in which runs died, the latest first. The ``MAX_FAILED`` that died last are
    read.
    """
    values: dict[str, Any] = {
        "namespace": namespace,
        "definitions": definitions,
        "error_type": error_type,
    }
    values |= {"since": since or "-infinity", "limit": MAX_FAILED}
    return fetch(connection, DeadHour, load("failures")["by_hour"], values)


def example(group: FailureGroup) -> str:
    """Return the error of the example, with its type, and the hosts of the group if there are
    several.
    """
    hosts = f" (on {join_first(group.hosts, MAX_HOSTS)})" if len(group.hosts) > 1 else ""
    return (
        error_text(group.error_type or None, group.example_error) or group.error_type or NO_TYPE
    ) + hosts


def with_revision(text: str, group: FailureGroup) -> str:
    """Return what is said of ``group``, and with which code it came, if that is known."""
    return (
        f"{text}, first failure after revision {group.since_revision}"
        if group.since_revision
        else text
    )


def how_they_ended(group: FailureGroup) -> str:
    """Return what became of the runs, the worst first: "3 dead, 1 retrying, 12 recovered"."""
    cancelled = group.runs - group.dead - group.failing - group.recovered
    parts = (
        (group.dead, "dead"),
        (group.failing, "retrying"),
        (group.recovered, "recovered"),
        (cancelled, "cancelled"),
    )
    return with_revision(", ".join(f"{number} {name}" for number, name in parts if number), group)
