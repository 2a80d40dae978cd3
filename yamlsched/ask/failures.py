"""Failures by job and type of error, for ``report``, ``status``, ``runs`` and the web page. All
numbers are bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.ask.problem import Deaths, Problem, Thresholds, deaths
from yamlsched.ask.queues import HeldUp, waiting_jobs
from yamlsched.db.query import fetch
from yamlsched.runs.lifecycle import error_text
from yamlsched.show.document import Section
from yamlsched.show.terminal import coloured
from yamlsched.text import join_first, truncate
from yamlsched.timetable.times import short_utc


@dataclass(frozen=True)
class FailureGroup:
    """Runs of one job whose latest errors are of one type; "" if they have none.

    ``runs`` are ``dead``, ``failing`` (unfinished), ``recovered`` (succeeded since), or cancelled.
    """

    job_type: str
    timezone: str
    error_type: str
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
    changed: str | None  # since which revision the job fails, in words


MAX_OF_JOB, MAX_FAILED = 1_000, 5_000
"""Runs that are read, of one job and in all. Of one job, that many dead ones and that many others.
If there are more in all, those of the jobs that have most are read.
"""
HEADINGS = ("runs", "job", "now", "attempts", "first", "last", "example", "error")
MAX_ERROR_CHARS = 160
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


def groups(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime | None,
    until: datetime | None = None,
    definitions: Sequence[int] | None = None,
    *,
    only_dead: bool = False,
) -> Failures:
    """Return the runs with a failed attempt in [since, until) by job and type of error: those of
    most dead runs first, then those of most failing ones, then the latest.

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
    groups = fetch(connection, FailureGroup, "failures.groups", **values)
    is_complete = not groups or groups[0].total < MAX_FAILED
    groups.sort(key=lambda group: (-group.dead, -group.failing, -group.last_at.timestamp()))
    return Failures(groups, is_complete)


def example(group: FailureGroup) -> str:
    """Return the error of the example, with its type, and the hosts of the group if there are
    several.
    """
    hosts = f" (on {join_first(group.hosts, MAX_HOSTS)})" if len(group.hosts) > 1 else ""
    return (
        error_text(group.error_type or None, group.example_error) or group.error_type or NO_TYPE
    ) + hosts


def how_they_ended(group: FailureGroup) -> str:
    """Return what became of the runs, the worst first: "3 dead, 1 retrying, 12 recovered"."""
    cancelled = group.runs - group.dead - group.failing - group.recovered
    parts = (
        (group.dead, "dead"),
        (group.failing, "retrying"),
        (group.recovered, "recovered"),
        (cancelled, "cancelled"),
    )
    ended = ", ".join(f"{number} {name}" for number, name in parts if number)
    return f"{ended}; {group.changed}" if group.changed and group.dead + group.failing else ended


def section(
    failures: Failures,
    groups: Sequence[FailureGroup],
    show_time: Callable[[datetime, str], str],
    title: str = "",
    more: str = "",
) -> Section:
    """Return a table of ``groups``, which are some of ``failures``; ``show_time`` gets an instant
    and a time zone.
    """
    rows = []
    for group in groups:
        plus = "+" if failures.is_bounded(group) else ""
        worst = "dead" if group.dead else "failing" if group.failing else "succeeded"
        row = (
            f"{group.runs}{plus}",
            group.job_type,
            coloured(worst, how_they_ended(group)),
            f"{group.attempts}{plus}",
            show_time(group.first_at, group.timezone),
            show_time(group.last_at, group.timezone),
            str(group.example_id),
            truncate(example(group), MAX_ERROR_CHARS),
        )
        rows.append(row)
    note = f"Only {MAX_FAILED:,} runs were read, of the jobs with most. A shorter span counts all."
    return Section(title, HEADINGS, rows, more, "" if failures.is_complete else note)


def problems(
    failed: Failures, thresholds: Thresholds, since: datetime, held_up: Iterable[HeldUp]
) -> Iterator[Problem]:
    """Yield a problem for each group of dead runs, or for many of one type of error."""
    waits = waiting_jobs(held_up)
    of_job: Counter[str] = Counter()
    for group in failed.groups:
        of_job[group.job_type] += group.dead
    died = [
        Deaths(
            group.job_type,
            group.error_type,
            group.dead,
            group.example_id,
            example(group),
            group.changed,
            waits=waits.get(group.job_type, ()),
        )
        for group in failed.groups
        if group.dead and of_job[group.job_type] > thresholds.max_dead
    ]
    return deaths(died, short_utc(since), of_type=True)
