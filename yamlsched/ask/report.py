"""What happened in a span of time, over all jobs: what needs attention first, then what ran, failed
and did not run.

Numbers are bounded: of each job, a number of runs is read that is smaller if many jobs are busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.ask import attention, failures, gaps, health
from yamlsched.ask.edits import Edit, edits
from yamlsched.ask.failures import Failures
from yamlsched.ask.gaps import Skipped
from yamlsched.ask.health import DoubtfulEffect, JobHealth
from yamlsched.ask.problem import Problem, Thresholds, worst_first
from yamlsched.ask.queues import HeldUp
from yamlsched.db import query
from yamlsched.durations import approximate
from yamlsched.show.terminal import count

MAX_RUNS, MIN_OF_JOB = 30_000, 3
"""Runs that are read in all, shared among the jobs; and how many of one job may be read at least.
"""
MAX_LISTED = 200
"""Rows of each list."""
MAX_LONGEST, MAX_EDITS = 20, 50
DAY = timedelta(days=1)
OWN_KINDS = ("dead", "in_doubt", "skipped")
"""The kinds of problems of which the report has its own: those of its span."""


@dataclass(frozen=True)
class LateRuns:
    """Runs of a job that started or finished later than its keys allow, and the one that was
    latest.

    ``at`` is when it did; None: not by the end of the span. ``late_by`` counts from when it was
    due, or from its slot.
    """

    job_type: str
    timezone: str
    kind: str  # started or finished
    runs: int
    late_by: timedelta
    run_id: int
    at: datetime | None


class EndedOfJob(NamedTuple):
    """How the runs of a job ended in a span, pruned ones included, and which of those that are kept
    took longest and used most memory.

    ``examined`` is how many runs were read: as many as the limit if there may be more.
    """

    job_type: str
    timezone: str
    runs: int
    succeeded: int
    retried: int  # of these, after a failed attempt
    dead: int
    cancelled: int
    expired: int  # of these, by expires_after
    examined: int
    took: timedelta | None
    longest_id: int | None
    longest_ended_at: datetime | None
    peak: int | None  # bytes of memory, of the latest attempt of a run
    peak_id: int | None


@dataclass(frozen=True)
class LongRun:
    """The longest attempt of a job, or a run that is still running."""

    job_type: str
    timezone: str
    run_id: int
    took: timedelta
    ended_at: datetime | None  # None: it is running


@dataclass(frozen=True)
class LargeRun:
    """The run of a job that took most memory. ``week_ago``: the most that one took in a day a week
    before the end.
    """

    job_type: str
    run_id: int
    peak: int  # bytes
    week_ago: int | None


@dataclass(frozen=True)
class NextSlot:
    """The next slot of all jobs."""

    job_type: str
    timezone: str
    at: datetime


@dataclass(frozen=True)
class Report:
    """What happened in [since, until). ``is_current``: it ends now, and the problems are also those
    of now.
    """

    namespace: str
    now: datetime
    since: datetime
    until: datetime
    is_current: bool
    timezone: str
    jobs: int
    problems: Sequence[Problem]
    ran: dict[str, int]
    queue: dict[str, Any]
    failures: Failures
    skipped: Sequence[Skipped]
    late: Sequence[LateRuns]  # the latest first
    in_doubt: Sequence[DoubtfulEffect]
    longest: Sequence[LongRun]
    largest: Sequence[LargeRun]
    held_up: Sequence[HeldUp]
    edits: Sequence[Edit]  # at most MAX_EDITS, the newest first
    next_slot: NextSlot | None
    clock: str = ""  # the time zone of all instants; "": each job's own and UTC

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not (
            self.ran["runs"] or self.failures.groups or self.skipped or self.longest or self.edits
        )


def read(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime,
    until: datetime | None = None,
    timezone: str = "UTC",
) -> Report:
    """Return what happened in [since, until); None: until now.

    ``timezone`` is that of the report itself.
    """
    limits, is_current = Thresholds(), until is None
    now = health.read(connection, namespace, limits.within)
    end = now.now if until is None else min(until, now.now)
    values: dict[str, Any] = {"namespace": namespace, "since": since, "until": end}
    ended, of_job = _ended(connection, values, len(now.jobs))
    skipped = gaps.skipped(gaps.read_gaps(connection, namespace, since, end), since, end)
    failed = failures.groups(connection, namespace, since, end)
    values |= {"now": now.now, "of_job": of_job, "is_past": not is_current}
    late = query.fetch(connection, LateRuns, "report.late", **values)
    in_doubt = [effect for effect in now.in_doubt if effect.since < end]

    held_up = now.held_up if is_current else []
    problems = [*failures.problems(failed, limits, since, held_up), *_problems(skipped, late)]
    if is_current:
        every = attention.problems(now, limits)
        problems += [problem for problem in every if problem.kind not in OWN_KINDS]
    runs_in_doubt = {effect.run_id for effect in in_doubt}
    for problem in attention.in_doubt(now):
        if is_current or problem.run_id in runs_in_doubt:
            problems.append(problem)

    longest = [
        LongRun(job.job_type, job.timezone, job.longest_id, job.took, job.longest_ended_at)
        for job in ended
        if job.longest_id is not None and job.took is not None
    ]
    if is_current:
        values["limit"] = MAX_LONGEST
        longest += query.fetch(connection, LongRun, "report.running", **values)
    return Report(
        namespace=namespace,
        now=now.now,
        since=since,
        until=end,
        is_current=is_current,
        timezone=timezone,
        jobs=sum(job.enabled and job.retired_at is None for job in now.jobs),
        problems=worst_first(problems, now.jobs),
        ran=_totals(ended, of_job),
        queue=now.queue,
        failures=failed,
        skipped=skipped[:MAX_LISTED],
        late=late[:MAX_LISTED],
        in_doubt=in_doubt,
        longest=sorted(longest, key=lambda run: run.took, reverse=True)[:MAX_LONGEST],
        largest=_largest(connection, ended, {**values, "since": end - 7 * DAY}),
        held_up=held_up,
        edits=edits(connection, namespace, since, end, limit=MAX_EDITS),
        next_slot=_next_slot(now.jobs, now.now),
    )


def _problems(skipped: Sequence[Skipped], late: Sequence[LateRuns]) -> Iterator[Problem]:
    """Yield the slots that were too old to be run, and the runs that were late."""
    for gap in skipped:
        if gap.reason == "late":
            yield attention.lost_slots(gap.job_type, gap.slots, gap.first_at, gap.last_at)
    for job in late:
        is_start, runs = job.kind == "started", count(job.runs, "run")
        since = "its due time" if is_start else "its slot"
        by = f"{'' if job.runs == 1 else 'up to '}{approximate(job.late_by)} after {since}"
        what = f"{job.kind} late" if job.at else f"had not {job.kind} in time"
        yield Problem(
            "started_late" if is_start else "finished_late",
            job.job_type,
            f"{job.job_type}: {runs} {what}, {by}",
            f"yamlsched show {job.run_id}",
            job.run_id,
        )


def _next_slot(jobs: Sequence[JobHealth], now: datetime) -> NextSlot | None:
    """Return the first slot that is to come. One that is overdue waits for an earlier run."""
    coming = [
        NextSlot(job.job_type, job.timezone, job.next_slot_at)
        for job in jobs
        if job.next_slot_at and job.next_slot_at > now
        if job.enabled and job.retired_at is None and not job.paused
    ]
    return min(coming, key=lambda slot: (slot.at, slot.job_type), default=None)


def _largest(
    connection: psycopg.Connection[Any], ended: Sequence[EndedOfJob], values: dict[str, Any]
) -> list[LargeRun]:
    """Return the runs that used most memory, beside what runs of their jobs used on the day at
    ``since``.
    """
    jobs = sorted([job for job in ended if job.peak], key=lambda job: -(job.peak or 0))
    jobs = jobs[:MAX_LONGEST]
    day = {"until": values["since"] + DAY, "of": [job.job_type for job in jobs]}
    rows = query.fetch(connection, EndedOfJob, "report.ended", **values | day)
    before = {job.job_type: job.peak for job in rows}
    return [
        LargeRun(job.job_type, job.peak_id, job.peak, before.get(job.job_type))
        for job in jobs
        if job.peak_id and job.peak
    ]


def _ended(
    connection: psycopg.Connection[Any], scope: dict[str, Any], jobs: int
) -> tuple[list[EndedOfJob], int]:
    """Return the jobs of which runs ended, and how many runs of one job were read at most.

    Each job has an equal share of ``MAX_RUNS``. What quiet jobs leave of theirs is shared by the
    busy ones.
    """

    def read(of_job: int, of: list[str] | None) -> list[EndedOfJob]:
        return query.fetch(connection, EndedOfJob, "report.ended", **scope, of_job=of_job, of=of)

    of_job = max(MAX_RUNS // max(jobs, 1), MIN_OF_JOB)
    ended = read(of_job, None)
    busy = [job.job_type for job in ended if job.examined >= of_job]
    spare = MAX_RUNS - sum(job.examined for job in ended)
    if busy and spare >= len(busy):
        of_job += spare // len(busy)
        more = {job.job_type: job for job in read(of_job, busy)}
        ended = [more.get(job.job_type, job) for job in ended]
    return ended, of_job


def _totals(ended: Sequence[EndedOfJob], of_job: int) -> dict[str, int]:
    """Return how many runs of how many jobs ended. ``is_bounded``: of some jobs, there are more."""
    names = ("runs", "succeeded", "retried", "dead", "cancelled", "expired")
    return {
        **{name: sum(getattr(job, name) for job in ended) for name in names},
        "jobs": len(ended),
        "is_bounded": any(job.examined >= of_job for job in ended),
    }
