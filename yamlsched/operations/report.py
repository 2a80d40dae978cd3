"""What happened in a span of time, over all jobs: what needs attention first, then what ran, failed and did not run.

Numbers are bounded: of each job, a number of runs is read that is smaller if many jobs are busy.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched import slots
from yamlsched.cron.expression import parse_cron
from yamlsched.durations import approximate
from yamlsched.errors import CronError, ScheduleError
from yamlsched.operations import attention, edits, failures, health
from yamlsched.operations.attention import Problem, Thresholds
from yamlsched.operations.failures import Failures
from yamlsched.operations.health import Health
from yamlsched.operations.why import REASONS
from yamlsched.store import report as store
from yamlsched.store.edits import Edit
from yamlsched.store.failures import FailureGroup
from yamlsched.store.health import EffectInDoubt, JobHealth
from yamlsched.store.report import EndedOfJob, GapOfJob
from yamlsched.terminal import join_first
from yamlsched.times import short_utc
from yamlsched.zones import zone

MAX_RUNS, MIN_OF_JOB = 200_000, 100
"""Runs that are read in all, shared among the jobs; and how many of one job may be read at least."""
MAX_GAPS_OF_JOB = 1_000
MAX_LISTED = 200
"""Rows of each list."""
MAX_LONGEST, MAX_EDITS = 20, 50
MAX_NAMES = 3
MIN_JOBS_OF_ONE_CAUSE = 4
"""Of so many jobs that died of one type of error, one problem is reported: they probably have one cause."""
KINDS = ("tick", "in_doubt", "dead", "stuck", "late", "skipped", "started_late", "failing", "file", "prune", "old")
"""Kinds of problems, the most urgent one first."""
REASON_ORDER = ("late", "key_taken", "overlap", "superseded", "paused", "disabled", "retired")
MICROSECOND = timedelta(microseconds=1)


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
class Skipped:
    """Slots of a job that were skipped for one reason. The instants are those of slots within the span, or its ends."""

    job_type: str
    timezone: str
    reason: str
    slots: int
    first_at: datetime
    last_at: datetime

    @property
    def why(self) -> str:
        return REASONS[self.reason]


@dataclass(frozen=True)
class StartedLate:
    """Runs of a job that started later than tolerated, and the one that was latest."""

    job_type: str
    timezone: str
    runs: int
    late_by: timedelta
    run_id: int
    started_at: datetime


@dataclass(frozen=True)
class LongRun:
    """The longest attempt of a job, or a run that is still running."""

    job_type: str
    timezone: str
    run_id: int
    took: timedelta
    ended_at: datetime | None  # None: it is running


@dataclass(frozen=True)
class Report:
    """What happened in [since, until). ``is_current``: it ends now, and the problems are also those of now."""

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
    skipped: Sequence[Skipped]
    late: Sequence[StartedLate]
    in_doubt: Sequence[EffectInDoubt]
    longest: Sequence[LongRun]
    edits: Sequence[Edit]  # at most MAX_EDITS, the newest first
    next_slot: tuple[str, str, datetime] | None  # its job, the time zone of that, and when

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not (self.ran.runs or self.failures.groups or self.skipped or self.longest or self.edits)


def read(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime,
    until: datetime | None = None,
    timezone: str = "UTC",
    thresholds: Thresholds | None = None,
) -> Report:
    """Return what happened in [since, until); None: until now. ``timezone`` is that of the report itself."""
    limits = thresholds or Thresholds()
    now = health.read(connection, namespace, limits.within)
    end = now.now if until is None else min(until, now.now)
    jobs = {job.job_type: job for job in now.jobs}
    own = {name: limit for name, job in jobs.items() if (limit := attention.max_late(job, limits)) != limits.max_late}
    ended, of_job = _ended(connection, namespace, since, end, limits.max_late, own, len(jobs))
    failed = failures.groups(connection, namespace, since, end)
    skipped = _skipped(store.skipped(connection, namespace, since, end, MAX_GAPS_OF_JOB), since, end)
    late = _late(ended)
    in_doubt = [one for one in now.in_doubt if one.since < end]
    found = [*_now(now, limits)] if until is None else []
    found += _in_doubt(now, in_doubt, until is None)
    found += [*_dead(failed, jobs, limits, since), *_not_run(skipped), *_started_late(late)]
    running = store.running(connection, namespace, MAX_LONGEST) if until is None else []
    longest = [LongRun(run.job_type, run.timezone, run.id, now.now - run.started_at, None) for run in running]
    longest += [LongRun(job.job_type, job.timezone, job.took_id, job.took, job.took_at) for job in ended if job.took]
    return Report(
        namespace=namespace,
        now=now.now,
        since=since,
        until=end,
        is_current=until is None,
        timezone=timezone,
        jobs=sum(job.enabled and job.retired_at is None for job in now.jobs),
        problems=sorted(found, key=lambda problem: KINDS.index(problem.kind)),
        ran=_totals(ended, of_job),
        queue=health.queue(now),
        failures=failed,
        dead=_dead_by_type(failed),
        skipped=skipped[:MAX_LISTED],
        late=late[:MAX_LISTED],
        in_doubt=in_doubt,
        longest=sorted(longest, key=lambda run: run.took, reverse=True)[:MAX_LONGEST],
        edits=edits.edits(connection, namespace, since, end, limit=MAX_EDITS),
        next_slot=_next_slot(now),
    )


def _ended(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime,
    until: datetime,
    max_late: timedelta,
    own: Mapping[str, timedelta],
    jobs: int,
) -> tuple[list[EndedOfJob], int]:
    """Return the jobs of which runs ended, and how many runs of one job were read at most.

    Each job has an equal share of ``MAX_RUNS``. What quiet jobs leave of theirs is shared by the busy ones.
    """
    of_job = max(MAX_RUNS // max(jobs, 1), MIN_OF_JOB)
    ended = store.ended(connection, namespace, since, until, max_late, own, of_job)
    busy = sum(job.examined >= of_job for job in ended)
    spare = MAX_RUNS - sum(job.examined for job in ended)
    if busy and spare >= busy:
        of_job += spare // busy
        ended = store.ended(connection, namespace, since, until, max_late, own, of_job)
    return ended, of_job


def _totals(ended: Sequence[EndedOfJob], of_job: int) -> Totals:
    def total(name: str) -> int:
        return sum(getattr(job, name) for job in ended)

    numbers = {name: total(name) for name in ("runs", "succeeded", "retried", "dead", "cancelled")}
    return Totals(**numbers, jobs=len(ended), is_bounded=any(job.examined >= of_job for job in ended))


def _dead_by_type(failed: Failures) -> list[DeadOfType]:
    runs: Counter[str] = Counter()
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    for group in failed.groups:
        if group.dead:
            runs[group.error_type] += group.dead
            jobs[group.error_type].add(group.job_type)
    return [DeadOfType(name, number, len(jobs[name])) for name, number in runs.most_common()]


def _skipped(gaps: Sequence[GapOfJob], since: datetime, until: datetime) -> list[Skipped]:
    """Return the gaps by job and reason, those that nobody intended first, and the largest."""
    parts: defaultdict[tuple[str, str, str], list[tuple[int, datetime, datetime]]] = defaultdict(list)
    for gap in gaps:
        if within := _within(gap, since, until):
            parts[gap.job_type, gap.timezone, gap.reason].append(within)
    found = [
        Skipped(
            job, timezone, reason, sum(n for n, _, _ in spans), min(f for _, f, _ in spans), max(e for _, _, e in spans)
        )
        for (job, timezone, reason), spans in parts.items()
    ]
    return sorted(found, key=lambda one: (REASON_ORDER.index(one.reason), -one.slots, one.job_type))


def _within(gap: GapOfJob, since: datetime, until: datetime) -> tuple[int, datetime, datetime] | None:
    """Return the number of slots of a gap within the span, the first and the last one; None if there is none.

    Those of a gap that extends beyond the span are counted by the job's cron. If that was changed, all count.
    """
    first, last = max(gap.first_slot, since), min(gap.last_slot, until - MICROSECOND)
    if (first, last) == (gap.first_slot, gap.last_slot):
        return gap.slots, first, last
    try:
        found = slots.span(parse_cron(gap.schedule or ""), zone(gap.timezone), first - MICROSECOND, last)
    except (CronError, ScheduleError):
        return gap.slots, first, last
    return (min(found.count, gap.slots), found.first, found.last) if found else None


def _late(ended: Sequence[EndedOfJob]) -> list[StartedLate]:
    found = [
        StartedLate(job.job_type, job.timezone, job.late, job.late_by, job.late_id, job.late_at)
        for job in ended
        if job.late and job.late_by is not None and job.late_at is not None
    ]
    return sorted(found, key=lambda one: one.late_by, reverse=True)


def _now(now: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield the problems that exist now, except for those of which the report has its own."""
    for problem in attention.problems(now, thresholds):
        if problem.kind not in ("dead", "in_doubt"):
            yield problem


def _in_doubt(now: Health, found: Sequence[EffectInDoubt], is_current: bool) -> list[Problem]:
    """Return the effects in doubt that wait for a person; those of now, or those that were in doubt at the end."""
    problems = [problem for problem in attention.problems(now, Thresholds()) if problem.kind == "in_doubt"]
    keys = {one.run_id for one in found}
    return [problem for problem in problems if is_current or problem.run_id in keys]


def _dead(
    failed: Failures, jobs: Mapping[str, JobHealth], thresholds: Thresholds, since: datetime
) -> Iterator[Problem]:
    """Yield a problem for each group of dead runs, and one for many jobs that died of one type of error."""
    of_job: Counter[str] = Counter()
    for group in failed.groups:
        of_job[group.job_type] += group.dead
    by_type: defaultdict[str, list[FailureGroup]] = defaultdict(list)
    for group in failed.worst_first():
        job = jobs.get(group.job_type)
        if group.dead and (job is None or of_job[group.job_type] > attention.max_dead(job, thresholds)):
            by_type[group.error_type].append(group)
    found: list[tuple[int, Problem]] = []
    for error_type, groups in by_type.items():
        if error_type and len({group.job_type for group in groups}) >= MIN_JOBS_OF_ONE_CAUSE:
            found.append((sum(group.dead for group in groups), _of_many_jobs(error_type, groups, since)))
        else:
            found += [(group.dead, _of_one_job(group, failed.is_bounded(group), since)) for group in groups]
    yield from (problem for _, problem in sorted(found, key=lambda one: one[0], reverse=True))


def _of_many_jobs(error_type: str, groups: Sequence[FailureGroup], since: datetime) -> Problem:
    names = list(dict.fromkeys(group.job_type for group in groups))
    runs = sum(group.dead for group in groups)
    what = f"{runs:,} runs of {len(names):,} jobs died: {failures.example(groups[0])} ({join_first(names, MAX_NAMES)})"
    which = f"--error-type {shlex.quote(error_type)} --since {short_utc(since)}"
    remedy = f"yamlsched show {groups[0].example_id}; then yamlsched retry --dead {which}"
    return Problem("dead", None, what, remedy, groups[0].example_id)


def _of_one_job(group: FailureGroup, is_bounded: bool, since: datetime) -> Problem:
    number = f"{group.dead}{'+' if is_bounded else ''}"
    runs = f"{number} {'call' if group.is_call else 'run'}{'' if number == '1' else 's'}"
    what = f"{group.job_type}: {runs}{' of on_dead' if group.is_call else ''} died: {failures.example(group)}"
    return Problem("dead", group.job_type, what, _retry(group, since), group.example_id)


def _retry(group: FailureGroup, since: datetime) -> str:
    if group.dead == 1:  # it is the example
        return f"yamlsched show {group.example_id}; then yamlsched retry {group.example_id}"
    of_type = f" --error-type {shlex.quote(group.error_type)}" if group.error_type else ""
    which = f"--job {group.job_type}{of_type}{' --on-dead' if group.is_call else ''} --since {short_utc(since)}"
    return f"yamlsched show {group.example_id}; then yamlsched retry --dead {which}"


def _not_run(skipped: Sequence[Skipped]) -> Iterator[Problem]:
    for one in skipped:
        if one.reason == "late":
            slots_of = "1 slot was" if one.slots == 1 else f"{one.slots} slots were"
            to = "" if one.slots == 1 else f" --to {short_utc(one.last_at)}"
            yield Problem(
                "skipped",
                one.job_type,
                f"{one.job_type}: {slots_of} not run: too old when a run would have been created",
                f"yamlsched backfill {one.job_type} --from {short_utc(one.first_at)}{to} runs what is still wanted",
            )


def _started_late(late: Sequence[StartedLate]) -> Iterator[Problem]:
    for one in late:
        runs = "1 run" if one.runs == 1 else f"{one.runs} runs"
        what = f"{one.job_type}: {runs} started late, by {'' if one.runs == 1 else 'up to '}{approximate(one.late_by)}"
        yield Problem("started_late", one.job_type, what, f"yamlsched show {one.run_id}", one.run_id)


def _next_slot(now: Health) -> tuple[str, str, datetime] | None:
    coming = [
        (job.job_type, job.timezone, job.next_slot_at)
        for job in now.jobs
        if job.next_slot_at is not None and job.enabled and job.retired_at is None and not job.paused
    ]
    return min(coming, key=lambda one: one[2], default=None)
