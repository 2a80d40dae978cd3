"""What happened in a span of time, over all jobs: what needs attention first, then what ran, failed
and did not run.

Numbers are bounded: of each job, a number of runs is read that is smaller if many jobs are busy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.ask import attention, failures, health, report_problems
from yamlsched.ask.attention import Problem, Thresholds
from yamlsched.ask.edits import Edit, edits
from yamlsched.ask.failures import Failures
from yamlsched.ask.health import DoubtfulEffect
from yamlsched.ask.report_problems import EndedOfJob, GapOfJob, LateRuns, Skipped
from yamlsched.ask.states import HeldUp, states, suspects
from yamlsched.db import query
from yamlsched.errors import CronError, ScheduleError
from yamlsched.timetable import slots
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.zones import zone

MAX_RUNS, MIN_OF_JOB = 30_000, 3
"""Runs that are read in all, shared among the jobs; and how many of one job may be read at least.
"""
MAX_GAPS_OF_JOB = 1_000
MAX_LISTED = 200
"""Rows of each list."""
MAX_LONGEST, MAX_EDITS = 20, 50
REASON_ORDER = (
    "late",
    "upstream",
    "key_taken",
    "overlap",
    "superseded",
    "calendar",
    "paused",
    "disabled",
    "retired",
)
MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)


@dataclass(frozen=True)
class Totals:
    """How many runs of how many jobs ended. ``is_bounded``: of some jobs, there are more."""

    runs: int
    jobs: int
    succeeded: int
    retried: int  # of these, after a failed attempt
    dead: int
    cancelled: int
    is_bounded: bool


@dataclass(frozen=True)
class DeadOfType:
    """Runs that died with errors of one type; "" if they have none."""

    error_type: str
    runs: int
    jobs: int


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
    ran: Totals
    queue: dict[str, Any]
    failures: Failures
    dead: Sequence[DeadOfType]
    dead_calls: int  # of on_dead: they are no runs of their job
    skipped: Sequence[Skipped]
    late: Sequence[LateRuns]  # the latest first
    in_doubt: Sequence[DoubtfulEffect]
    longest: Sequence[LongRun]
    largest: Sequence[LargeRun]
    held_up: Sequence[HeldUp]
    edits: Sequence[Edit]  # at most MAX_EDITS, the newest first
    next_slot: tuple[str, str, datetime] | None  # its job, the time zone of that, and when
    clock: str = ""  # the time zone of all instants; "": each job's own and UTC

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not (
            self.ran.runs or self.failures.groups or self.skipped or self.longest or self.edits
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
    at = query.now(connection)
    end = at if until is None else min(until, at)
    limits, sql = Thresholds(), query.load("report")
    values = {"namespace": namespace, "since": since, "until": end}
    [jobs] = connection.execute(sql["jobs"], values).fetchall()
    known = states(connection, [namespace], limits.within)[namespace]
    now = health.read(connection, namespace, limits.within, suspects(known), known)
    ended, of_job = _ended(connection, values, jobs.in_all)
    gaps = read_gaps(connection, namespace, since, end)
    skipped = _skipped(gaps, since, end)
    failed = failures.groups(connection, namespace, since, end)
    values |= {"now": at, "of_job": of_job, "is_past": until is not None}
    late = query.fetch(connection, LateRuns, sql["late"], values)
    in_doubt = [effect for effect in now.in_doubt if effect.since < end]
    problems = [*(report_problems.current_problems(now, limits) if until is None else ())]
    problems += report_problems.in_doubt(now, in_doubt, until is None)
    problems += report_problems.dead(failed, limits, since)
    problems += [*report_problems.not_run(skipped), *report_problems.late(late)]
    large = {
        "of_job": of_job,
        "of": _top(ended, "peak"),
        "since": end - 7 * DAY,
        "until": end - 6 * DAY,
    }
    before = {
        job.job_type: job.peak
        for job in query.fetch(connection, EndedOfJob, sql["ended"], {**values, **large})
    }
    largest = [
        LargeRun(job.job_type, job.peak_id, job.peak, before.get(job.job_type))
        for job in ended
        if job.peak_id and job.peak
    ]
    values |= {"limit": MAX_LONGEST, "of": _top(ended, "took")}
    longest = query.fetch(connection, LongRun, sql["running"], values) if until is None else []
    longest += query.fetch(connection, LongRun, sql["longest"], values)

    return Report(
        namespace=namespace,
        now=at,
        since=since,
        until=end,
        is_current=until is None,
        timezone=timezone,
        jobs=jobs.jobs,
        problems=attention.worst_first(problems),
        ran=_totals(ended, of_job),
        queue=health.queue(now),
        failures=failed,
        dead=_dead_by_type(failed),
        dead_calls=sum(group.dead for group in failed.groups if group.is_call),
        skipped=skipped[:MAX_LISTED],
        late=late[:MAX_LISTED],
        in_doubt=in_doubt,
        longest=sorted(longest, key=lambda run: run.took, reverse=True)[:MAX_LONGEST],
        largest=sorted(largest, key=lambda run: run.peak, reverse=True)[:MAX_LONGEST],
        held_up=now.held_up if until is None else [],
        edits=edits(connection, namespace, since, end, limit=MAX_EDITS),
        next_slot=(jobs.job_type, jobs.timezone, jobs.next_slot_at) if jobs.job_type else None,
    )


def read_gaps(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime
) -> list[GapOfJob]:
    """Return the gaps of each job that overlap [since, until), or were recorded in it."""
    parameters = {"namespace": namespace, "since": since, "until": until, "of_job": MAX_GAPS_OF_JOB}
    return query.fetch(connection, GapOfJob, query.load("report")["skipped"], parameters)


def _ended(
    connection: psycopg.Connection[Any], scope: dict[str, Any], jobs: int
) -> tuple[list[EndedOfJob], int]:
    """Return the jobs of which runs ended, and how many runs of one job were read at most.

    Each job has an equal share of ``MAX_RUNS``. What quiet jobs leave of theirs is shared by the
    busy ones.
    """

    def read(of_job: int, of: list[str] | None) -> list[EndedOfJob]:
        return query.fetch(
            connection,
            EndedOfJob,
            query.load("report")["ended"],
            {**scope, "of_job": of_job, "of": of},
        )

    of_job = max(MAX_RUNS // max(jobs, 1), MIN_OF_JOB)
    ended = read(of_job, None)
    busy = [job.job_type for job in ended if job.examined >= of_job]
    spare = MAX_RUNS - sum(job.examined for job in ended)
    if busy and spare >= len(busy):
        of_job += spare // len(busy)
        more = {job.job_type: job for job in read(of_job, busy)}
        ended = [more.get(job.job_type, job) for job in ended]
    return ended, of_job


def _totals(ended: Sequence[EndedOfJob], of_job: int) -> Totals:
    def total(name: str) -> int:
        return sum(getattr(job, name) for job in ended)

    numbers = {name: total(name) for name in ("runs", "succeeded", "retried", "dead", "cancelled")}
    return Totals(
        **numbers, jobs=len(ended), is_bounded=any(job.examined >= of_job for job in ended)
    )


def _top(ended: Sequence[EndedOfJob], name: str) -> list[str]:
    """Return the jobs with the longest or the largest runs, as many as are listed."""
    jobs = sorted(
        [job for job in ended if getattr(job, name)],
        key=lambda job: getattr(job, name),
        reverse=True,
    )
    return [job.job_type for job in jobs[:MAX_LONGEST]]


def _dead_by_type(failed: Failures) -> list[DeadOfType]:
    runs: Counter[str] = Counter()
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    for group in failed.groups:
        if group.dead and not group.is_call:
            runs[group.error_type] += group.dead
            jobs[group.error_type].add(group.job_type)
    return [DeadOfType(name, number, len(jobs[name])) for name, number in runs.most_common()]


def _skipped(gaps: Sequence[GapOfJob], since: datetime, until: datetime) -> list[Skipped]:
    """Return the gaps by job and reason, unintended ones first, and the largest.

    All late ones, which are problems, and of the others as many as are listed: of 10,000, the rest
    is not even created.
    """
    totals: dict[tuple[str, str, str], tuple[int, datetime, datetime]] = {}
    for gap in gaps:
        job, timezone, _, reason, first, last, number, _, _, is_new = gap
        if not is_new and (first < since or last >= until):
            part = within_span(gap, since, until)
            if part is None:
                continue
            number, first, last = part
        known = totals.get((job, timezone, reason))
        if known is not None:
            number, first, last = number + known[0], min(first, known[1]), max(last, known[2])
        totals[job, timezone, reason] = number, first, last
    rank = {reason: nth for nth, reason in enumerate(REASON_ORDER)}
    worst_first = sorted(totals, key=lambda key: (rank[key[2]], -totals[key][0], key[0]))
    return [
        Skipped(*key, *totals[key])
        for nth, key in enumerate(worst_first)
        if nth < MAX_LISTED or key[2] == "late"
    ]


def within_span(
    gap: GapOfJob, since: datetime, until: datetime
) -> tuple[int, datetime, datetime] | None:
    """Return the number of slots of a gap within the span, the first and the last one; None if
    there is none.

    Those of a gap that extends beyond the span are counted by the job's cron. If that was changed,
    all count.
    """
    first, last = max(gap.first_slot, since), min(gap.last_slot, until - MICROSECOND)
    if (first, last) == (gap.first_slot, gap.last_slot):
        return gap.slots, first, last

    try:
        span = slots.span(
            parse_schedule(gap.schedule or ""), zone(gap.timezone), first - MICROSECOND, last
        )
    except (CronError, ScheduleError):
        return gap.slots, first, last
    return (min(span.count, gap.slots), span.first, span.last) if span else None
