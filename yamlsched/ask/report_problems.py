"""What of a report needs attention, and the command that helps."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from yamlsched.ask import attention, failures
from yamlsched.ask.attention import Problem, Thresholds
from yamlsched.ask.failures import FailureGroup, Failures
from yamlsched.ask.health import DoubtfulEffect, Health
from yamlsched.ask.why import REASONS
from yamlsched.durations import approximate
from yamlsched.text import join_first
from yamlsched.timetable.times import short_utc


@dataclass(frozen=True)
class Skipped:
    """Slots of a job that were skipped for one reason, or recorded as skipped, in the span.

    The instants are those of slots, or the ends of the span.
    """

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
    """How the runs of a job ended in a span, and the longest attempt.

    A tuple, as ``GapOfJob``, because there may be 10,000 of them: a frozen dataclass takes three
    times as long. ``examined`` is how many runs were read: as many as the limit if there may be
    more.
    """

    job_type: str
    timezone: str
    runs: int
    succeeded: int
    retried: int  # of these, after a failed attempt
    dead: int
    cancelled: int
    took: timedelta | None
    examined: int
    peak: int | None  # bytes of memory, of the latest attempt of a run
    peak_id: int | None


class GapOfJob(NamedTuple):
    """A gap of a job, which has ``schedule`` now."""

    job_type: str
    timezone: str
    schedule: str | None
    reason: str
    first_slot: datetime
    last_slot: datetime
    slots: int
    recorded_at: datetime
    detail: str | None
    is_new: bool  # recorded within the span


MAX_NAMES = 3
OWN_KINDS = ("dead", "in_doubt", "skipped")
"""The kinds of problems of which the report has its own: those of its span."""
MIN_JOBS_OF_ONE_CAUSE = 4
"""Of so many jobs that died of one type of error, one problem is reported: they probably have one
cause.
"""


def current_problems(now: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield the problems that exist now, except for those of which the report has its own."""
    for problem in attention.problems(now, thresholds):
        if problem.kind not in OWN_KINDS:
            yield problem


def in_doubt(now: Health, effects: Sequence[DoubtfulEffect], is_current: bool) -> list[Problem]:
    """Return the effects in doubt that wait for a person; those of now, or those that were in doubt
    at the end.
    """
    keys = {effect.run_id for effect in effects}
    return [problem for problem in attention.in_doubt(now) if is_current or problem.run_id in keys]


def dead(failed: Failures, thresholds: Thresholds, since: datetime) -> Iterator[Problem]:
    """Yield a problem for each group of dead runs, and one for many jobs that died of one type of
    error.
    """
    of_job: Counter[tuple[str, bool]] = Counter()
    for group in failed.groups:
        of_job[group.job_type, group.is_call] += group.dead
    by_type: defaultdict[str, list[FailureGroup]] = defaultdict(list)
    for group in failed.worst_first():
        limit = 0 if group.is_call else thresholds.max_dead
        if of_job[group.job_type, group.is_call] > limit and group.dead:
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
    runs = sum(group.dead for group in groups)
    what = (
        f"{runs:,} runs of {len(names):,} jobs died: {failures.example(groups[0])}"
        f" ({join_first(names, MAX_NAMES)})"
    )
    which = f"--error-type {shlex.quote(error_type)} --since {short_utc(since)}"
    remedy = f"yamlsched show {groups[0].example_id}; then yamlsched retry --dead {which}"
    return Problem("dead", None, what, remedy, groups[0].example_id)


def _problem_of_one_job(group: FailureGroup, is_bounded: bool, since: datetime) -> Problem:
    number = f"{group.dead}{'+' if is_bounded else ''}"
    runs = f"{number} {'call' if group.is_call else 'run'}{'' if number == '1' else 's'}"
    died = failures.with_revision(f"{runs}{' of on_dead' if group.is_call else ''} died", group)
    what = f"{group.job_type}: {died}: {failures.example(group)}"
    return Problem("dead", group.job_type, what, _retry(group, since), group.example_id)


def _retry(group: FailureGroup, since: datetime) -> str:
    if group.dead == 1:  # it is the example
        return f"yamlsched show {group.example_id}; then yamlsched retry {group.example_id}"
    of_type = f" --error-type {shlex.quote(group.error_type)}" if group.error_type else ""
    which = (
        f"--job {group.job_type}{of_type}{' --on-dead' if group.is_call else ''} --since"
        f" {short_utc(since)}"
    )
    return f"yamlsched show {group.example_id}; then yamlsched retry --dead {which}"


def not_run(skipped: Sequence[Skipped]) -> Iterator[Problem]:
    for gap in skipped:
        if gap.reason == "late":
            yield attention.lost_slots(gap.job_type, gap.slots, gap.first_at, gap.last_at)


def late(late: Sequence[LateRuns]) -> Iterator[Problem]:
    for job in late:
        runs, is_one = f"{job.runs} run{'' if job.runs == 1 else 's'}", job.runs == 1
        by = f"{'' if is_one else 'up to '}{approximate(job.late_by)}"
        if job.kind == "started":
            by = f"by {by}" if job.at else f"{by} after {'it was' if is_one else 'they were'} due"
        else:
            by += f" after {'its slot' if is_one else 'their slots'}"
        what = f"{job.kind} late, {by}" if job.at else f"had not {job.kind} in time, {by}"
        yield Problem(
            "started_late" if job.kind == "started" else "finished_late",
            job.job_type,
            f"{job.job_type}: {runs} {what}",
            f"yamlsched show {job.run_id}",
            job.run_id,
        )
