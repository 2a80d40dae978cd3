"""Failures by job and type of error, for ``report``, ``status``, ``runs`` and the web page. All
numbers are bounded.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.ask.problem import (
    MIN_JOBS_OF_ONE_CAUSE,
    Problem,
    Thresholds,
    one_cause,
    show_and_retry,
)
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
    note = f"Only {MAX_FAILED:,} runs were read, of the jobs with most: a shorter span counts all."
    return Section(title, HEADINGS, rows, more, "" if failures.is_complete else note)


def problems(failed: Failures, thresholds: Thresholds, since: datetime) -> Iterator[Problem]:
    """Yield a problem for each group of dead runs, and one for many jobs that died of one type of
    error.
    """
    of_job: Counter[str] = Counter()
    for group in failed.groups:
        of_job[group.job_type] += group.dead
    by_type: defaultdict[str, list[FailureGroup]] = defaultdict(list)
    for group in failed.groups:
        if of_job[group.job_type] > thresholds.max_dead and group.dead:
            by_type[group.error_type].append(group)
    problems: list[tuple[int, Problem]] = []
    for error_type, groups in by_type.items():
        if error_type and len({group.job_type for group in groups}) >= MIN_JOBS_OF_ONE_CAUSE:
            problems.append(
                (
                    sum(group.dead for group in groups),
                    _problem_of_many_jobs(error_type, groups, since),
                )
            )
        else:
            problems += [
                (group.dead, _problem_of_one_job(group, failed.is_bounded(group), since))
                for group in groups
            ]
    yield from (problem for _, problem in sorted(problems, key=lambda pair: pair[0], reverse=True))


def _problem_of_many_jobs(
    error_type: str, groups: Sequence[FailureGroup], since: datetime
) -> Problem:
    names = list(dict.fromkeys(group.job_type for group in groups))
    runs, run = sum(group.dead for group in groups), groups[0].example_id
    problem = one_cause(error_type, names, runs, example(groups[0]), short_utc(since))
    return replace(problem, remedy=show_and_retry(run, problem.remedy), run_id=run)


def _problem_of_one_job(group: FailureGroup, is_bounded: bool, since: datetime) -> Problem:
    number = f"{group.dead}{'+' if is_bounded else ''}"
    died = f"{number} run{'' if number == '1' else 's'} died"
    changed = f"; {group.changed}" if group.changed else ""
    what = f"{group.job_type}: {died}: {example(group)}{changed}"
    remedy = show_and_retry(group.example_id, _which(group, since))
    run, error_type = group.example_id, group.error_type
    return Problem("dead", group.job_type, what, remedy, run, error_type=error_type)


def _which(group: FailureGroup, since: datetime) -> str | None:
    """Return the selection of the dead runs of a group; None if there is one, the example."""
    if group.dead == 1:
        return None
    of_type = f" --error-type {shlex.quote(group.error_type)}" if group.error_type else ""
    return f"--dead --job {group.job_type}{of_type} --since {short_utc(since)}"
