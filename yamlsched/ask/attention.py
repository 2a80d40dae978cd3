"""What of the health of a namespace needs attention, and the command that shows or
fixes it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import psycopg

from yamlsched import durations
from yamlsched.ask import health, runs, states
from yamlsched.ask.health import (
    Health,
    JobHealth,
    UnstartableJob,
    able_but_down,
    cannot_start_by_reason,
    drift,
    effects_in_doubt,
    failed_starts,
    first_places,
    in_use,
    not_in_use,
    pruning,
    queue,
    refusal,
    time_held,
)
from yamlsched.ask.states import LAST, MAX_NAMES, by_run
from yamlsched.durations import approximate, between
from yamlsched.handler.once import settle_command
from yamlsched.runs.lifecycle import DEFAULT_QUEUE, error_text
from yamlsched.text import join_first
from yamlsched.timetable.times import rfc3339, short_utc

UNSERVED_TOLERANCE = timedelta(minutes=10)
"""How long runs may be due in a queue whose workers are there only while runs wait."""
MAX_FAILED_STARTS = 3
"""From this many on in a row, failed starts of a queue are a problem."""
MAX_LISTED_PROBLEMS = 10
"""Stuck runs, and effects in doubt, that are reported one by one."""
NOT_RUN = "its slot was not run"
NO_SYNC = "no sync has created the run of its slot"
"""Why a job is late of which slots were too old to be run, or were not processed, as yamlsched.late
has it.
"""
Kind = Literal[
    "tick",
    "slots",
    "in_doubt",
    "dead",
    "held_up",
    "stuck",
    "lack",
    "start",
    "late",
    "skipped",
    "failing",
    "started_late",
    "finished_late",
    "notify",
    "file",
    "prune",
    "paused",
    "calendar",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of problems, the most severe one first."""


@dataclass(frozen=True)
class Thresholds:
    """The limits of what is healthy; None: no limit."""

    max_dead: int = 0
    within: timedelta = timedelta(hours=1)
    max_tick_age: timedelta = timedelta(minutes=5)
    max_dead_total: int | None = None
    max_failing: int = 0
    max_streak: int | None = None
    max_paused: timedelta = timedelta(days=7)


@dataclass(frozen=True)
class Problem:
    """Something that needs attention: its job and its run, if it has one, and the command that
    shows or fixes it.

    ``since`` is when it began, if that is known. ``held_up`` is the number of jobs that wait for it
    to be fixed.
    """

    kind: Kind
    job_type: str | None
    what: str
    remedy: str
    run_id: int | None = None
    since: datetime | None = None
    held_up: int = 0

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: the most severe kind, then what holds up most jobs, then the
        oldest.
        """
        return KINDS.index(self.kind), -self.held_up, self.since or LAST


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Return ``problems`` in the order in which everything shows them."""
    return sorted(problems, key=lambda problem: problem.rank)


def problems(health: Health, thresholds: Thresholds) -> list[Problem]:
    """Return what exceeds ``thresholds``, worst first."""
    problems = [
        *_ticks(health, thresholds),
        *_refused(health),
        *_files(health),
        *_pruning(health),
        *_stuck(health),
    ]
    problems += [
        *_calendars(health),
        *_unsent(health),
        *unwritten(health),
        *_cannot_start(health),
        *unserved(health, thresholds),
        *starts(health),
        *in_doubt(health),
        *_dead_total(health, thresholds),
        *_lost_slots(health, thresholds),
        *_held_up(health, thresholds),
    ]
    for job in health.jobs:
        is_noted = (
            job.dead_within or job.dead_calls_within or job.overdue_since is not None or job.paused
        )
        if is_noted or job.attempt_streak or job.failing:  # or no check finds anything
            for check in JOB_CHECKS:
                problems += check(job, health, thresholds)
    return worst_first(problems)


def summary(health: Health, thresholds: Thresholds) -> dict[str, Any]:
    """Return everything about ``health`` as one document."""
    reported = problems(health, thresholds)
    return {
        "namespace": health.namespace,
        "now": health.now,
        "healthy": not reported,
        "problems": reported,
        "last_tick_at": health.last_tick_at,
        "file_in_use": in_use(health),
        "other_files": drift(health),
        "files_not_in_use": not_in_use(health),
        "refused_files": health.refused,
        "cannot_start": health.cannot_start,
        "queue": queue(health),
        "limits": health.limits,
        "held_up": [held_up._asdict() for held_up in health.held_up],
        "calendars": [calendar._asdict() for calendar in health.calendars],
        "workers": health.workers,
        "queues": [queue._asdict() for queue in health.queues],
        "unserved_queues": [queue._asdict() for queue in health.unserved],
        "stuck": health.stuck,
        "in_doubt": health.in_doubt,
        "in_doubt_counts": {
            waits_for: effects_in_doubt(health, waits_for) for waits_for in ("person", "retry")
        },
        "jobs": [job._asdict() for job in health.jobs],
    }


def _ticks(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    remedy = "yamlsched doctor"
    if health.last_tick_at is None:
        yield Problem(
            "tick",
            None,
            f'there has been no tick in namespace "{health.namespace}"',
            remedy,
        )
    elif health.now - health.last_tick_at > thresholds.max_tick_age:
        yield Problem(
            "tick",
            None,
            f"no tick for {between(health.last_tick_at, health.now)}, the last came from"
            f" {health.last_tick_host}",
            remedy,
        )


def _refused(health: Health) -> Iterator[Problem]:
    for file in health.refused:
        remedy = (
            "correct --env, or use a separate namespace or database for each environment"
            if file.is_other_environment
            else "run yamlsched validate there"
        )
        yield Problem("file", None, refusal(file), remedy)


def _files(health: Health) -> Iterator[Problem]:
    current = in_use(health)
    for file in drift(health):
        time = approximate(time_held(file, current))
        of = f"{current.hash[:8]} of {current.applied_by}" if current else "none"
        what = f"{first_places(file)} has had another file ({file.hash[:8]}) for {time}"
        remedy = "deploy the same version to all hosts, or run yamlsched sync with the right file"
        yield Problem("file", None, f"{what}; in use is {of}", remedy)


def _pruning(health: Health) -> Iterator[Problem]:
    if (current := in_use(health)) is not None and (what := pruning(current)):
        yield Problem(
            "prune", None, what, "correct the folder or retention.archive, then: yamlsched prune"
        )


def _calendars(health: Health) -> Iterator[Problem]:
    for calendar in health.calendars:
        if calendar.has_ended:
            yield Problem(
                "calendar", None, calendar.what, "add the next dates and a later until to it"
            )


def _unsent(health: Health) -> Iterator[Problem]:
    for what in health.unsent:
        yield Problem("notify", None, what, "yamlsched doctor --notify")


def unwritten(health: Health) -> Iterator[Problem]:
    """Yield the jobs whose due slots cannot be written."""
    for name, error in health.unwritten[:MAX_LISTED_PROBLEMS]:
        yield Problem(
            "slots", name, f"{name}: its due slots cannot be written: {error}", "yamlsched sync"
        )
    if more := len(health.unwritten[MAX_LISTED_PROBLEMS:]):
        what = f"the due slots of {more} more {'job' if more == 1 else 'jobs'} cannot be written"
        yield Problem("slots", None, what, "yamlsched sync")


def _cannot_start(health: Health) -> Iterator[Problem]:
    """Yield the jobs that no host can start. What one host can start is not a problem: the run goes
    there.
    """
    lacking: dict[str, list[UnstartableJob]] = {}
    for entries in cannot_start_by_reason(health):
        if entries[0].is_everywhere:
            lacking.setdefault(entries[0].job_type, entries)
    for name, entries in sorted(lacking.items())[:MAX_LISTED_PROBLEMS]:
        entry = entries[0]
        places = join_first([each.place for each in entries], MAX_NAMES)
        remedy = "install it or set it where workers run, or correct schedules.yaml"
        what = (
            f"no host can start job {name}: {entry.reason}, on {places} since"
            f" {rfc3339(entry.since, 'seconds')}"
        )
        if able := able_but_down(entry, health.now):
            remedy = f"start the ticks of {entry.down[0]} again"
            what = f"no host can start job {name}: {able}; {places} cannot: {entry.reason}"
        yield Problem("lack", name, what, remedy, since=entry.since)
    if len(lacking) > MAX_LISTED_PROBLEMS:
        more = len(lacking) - MAX_LISTED_PROBLEMS
        yield Problem(
            "lack",
            None,
            f"no host can start {more} more job{'' if more == 1 else 's'}",
            "yamlsched status",
        )


def unserved(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield the queues of jobs that nobody serves: at once, or, if its workers are there only while
    runs wait, when some wait for too long. If nothing ticks, that is the problem.
    """
    waiting = {
        load.queue: load.oldest_due_at
        for load in health.queues
        if load.oldest_due_at is not None and not load.starting and not load.executing
    }
    for each in () if any(_ticks(health, thresholds)) else health.unserved:
        since = waiting.get(each.queue, health.now)
        if each.is_on_demand and health.now - since <= UNSERVED_TOLERANCE:
            continue
        option = "" if each.queue == DEFAULT_QUEUE else f" --queue {each.queue}"
        remedy = f"yamlsched tick{option} in a crontab, or yamlsched work --loop{option}"
        yield Problem("start", None, each.in_words(health.now), remedy, since=each.served_at)


def starts(health: Health) -> Iterator[Problem]:
    """Yield the queues whose workers do not start."""
    for each in health.queues:
        if each.failed_starts >= MAX_FAILED_STARTS:
            remedy = (
                "correct the start command of the queue, or its engine; the next start tries it"
            )
            yield Problem("start", None, failed_starts(each), remedy, since=each.oldest_due_at)


def _stuck(health: Health) -> Iterator[Problem]:
    for run in health.stuck[:MAX_LISTED_PROBLEMS]:
        what = f"run {run.run_id} of {run.job_type} is stuck: {run.why}, held by {run.worker}"
        remedy = f"yamlsched show {run.run_id}"
        yield Problem("stuck", run.job_type, what, remedy, run.run_id)
    if more := len(health.stuck[MAX_LISTED_PROBLEMS:]):
        what = "1 more run is stuck" if more == 1 else f"{more} more runs are stuck"
        yield Problem("stuck", None, what, "yamlsched runs --status running")


def in_doubt(health: Health) -> Iterator[Problem]:
    """Yield the effects in doubt that wait for a person."""
    listed = [effect for effect in health.in_doubt if effect.waits_for == "person"][
        :MAX_LISTED_PROBLEMS
    ]
    for effect in listed:
        of_job = f" of {effect.job_type}" if effect.job_type else ""
        what = (
            f'effect "{effect.key}" of run {effect.run_id}{of_job} has been in doubt for '
            f"{between(effect.since, health.now)}: look up whether it happened (idempotency key "
            f"{effect.provider_key})"
        )
        remedy = settle_command(health.namespace, effect.key)
        if effect.run_status in ("dead", "cancelled"):
            remedy += f", then: yamlsched retry {effect.run_id}"
        yield Problem("in_doubt", effect.job_type, what, remedy, effect.run_id)
    if more := effects_in_doubt(health, "person") - len(listed):
        what = f"{more} more {'effect is' if more == 1 else 'effects are'} in doubt"
        yield Problem("in_doubt", None, what, "the view yamlsched.effects_in_doubt lists them")


def _dead_total(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    dead = sum(job.dead_within for job in health.jobs)
    if thresholds.max_dead_total is not None and dead > thresholds.max_dead_total:
        span, limit = durations.show(thresholds.within), thresholds.max_dead_total
        runs = "1 run" if dead == 1 else f"{dead} runs"
        what = f"{runs} of all jobs died within {span}, the limit is {limit}"
        yield Problem("dead", None, what, f"yamlsched runs --status dead --since {span}")


def _lost_slots(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    for lost in health.lost_slots:
        yield lost_slots(lost.job_type, lost.slots, lost.first_slot, lost.last_slot)


def lost_slots(job: str, slots: int, first: datetime, last: datetime) -> Problem:
    """Return the problem that ``slots`` of ``job`` were not run: they were too old."""
    number, to = (
        ("1 slot was", "") if slots == 1 else (f"{slots} slots were", f" --to {short_utc(last)}")
    )
    what = f"{job}: {number} not run: too old when a run could have started"
    remedy = f"yamlsched backfill {job} --from {short_utc(first)}{to} runs those you still need"
    return Problem("skipped", job, what, remedy)


def _dead(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if is_dead(job, thresholds):
        span, run = durations.show(thresholds.within), job.dead_run_id
        runs = "1 run" if job.dead_within == 1 else f"{job.dead_within} runs"
        last = f": {error}" if (error := error_text(job.dead_error_type, job.dead_error)) else ""
        waits = [each.job_type for each in health.held_up if each.upstream == job.job_type]
        what = f"{job.job_type}: {runs} died within {span}{last}{_holds_up(waits)}"
        is_one = job.dead_within == 1
        which = str(run) if is_one else f"--dead --job {job.job_type} --since {span}"
        remedy = f"yamlsched show {run}; then yamlsched retry {which}"
        yield Problem(
            "dead",
            job.job_type,
            what,
            remedy,
            run if is_one else None,
            job.dead_since,
            len(set(waits)),
        )


def is_dead(job: JobHealth, thresholds: Thresholds) -> bool:
    """Return whether more runs of ``job`` died recently than are tolerated."""
    return job.dead_within > thresholds.max_dead


def _holds_up(jobs: Sequence[str]) -> str:
    names = list(dict.fromkeys(jobs))
    return f"; holds up {join_first(names, MAX_NAMES)}" if names else ""


def _held_up(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield the jobs that wait for a dead or cancelled run, unless the problem of that run names
    them.
    """
    reported = {job.job_type for job in health.jobs if is_dead(job, thresholds)}
    for held_up in by_run(each for each in health.held_up if each.upstream not in reported):
        names, root = [each.job_type for each in held_up], held_up[0]
        what = (
            f"{join_first(names, MAX_NAMES)} {'is' if len(names) == 1 else 'are'} held up by"
            f" {root.because(health.now)}"
        )
        remedy = f"yamlsched show {root.run_id}; then yamlsched retry {root.run_id}"
        yield Problem(
            "held_up", root.upstream, what, remedy, root.run_id, root.ended_at, len(names)
        )


def _dead_calls(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if job.dead_calls_within:
        span = durations.show(thresholds.within)
        calls = "1 call" if job.dead_calls_within == 1 else f"{job.dead_calls_within} calls"
        last = f": {error}" if (error := error_text(job.call_error_type, job.call_error)) else ""
        yield Problem(
            "dead",
            job.job_type,
            f"{job.job_type}: {calls} of on_dead died within {span}{last}",
            f"yamlsched runs --job {job.job_type} --status dead --on-dead --since {span}",
        )


def _failing(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if job.failing > thresholds.max_failing and job.failing_run_id is not None:
        run = job.failing_run_id
        attempts = f"{job.failing_attempts} of {job.failing_max_attempts} attempts"
        runs = (
            f"run {run} has"
            if job.failing == 1
            else f"{job.failing} runs are failing: run {run} has"
        )
        last = (
            f": {error}" if (error := error_text(job.failing_error_type, job.failing_error)) else ""
        )
        what = f"{job.job_type}: {runs} failed {attempts}{last}"
        yield Problem(
            "failing", job.job_type, what, f"yamlsched show {run}", run, job.last_failure_at
        )


def _streak(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    limit = thresholds.max_streak
    if limit is not None and job.attempt_streak > limit:
        attempts = (
            "1 attempt has" if job.attempt_streak == 1 else f"{job.attempt_streak} attempts have"
        )
        what = f"{job.job_type}: {attempts} failed since the last success{_last_error(job)}"
        remedy = f"yamlsched show {job.last_failure_run_id}"
        yield Problem("failing", job.job_type, what, remedy, job.last_failure_run_id)


def _last_error(job: JobHealth) -> str:
    return f": {error}" if (error := error_text(job.last_error_type, job.last_error)) else ""


def _late(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if job.overdue_since is None or job.overdue_why == NOT_RUN:  # those are reported by themselves
        return
    what = f"{job.job_type}: late by {between(job.overdue_since, health.now)}: {job.overdue_why}"
    remedy = "yamlsched doctor" if job.overdue_why == NO_SYNC else f"yamlsched why {job.job_type}"
    if job.overdue_run_id is not None:
        what += f": run {job.overdue_run_id} is dead"
        remedy = f"yamlsched show {job.overdue_run_id}; then yamlsched retry {job.overdue_run_id}"
    waits = [each.job_type for each in health.held_up if each.run_id == job.overdue_run_id]
    yield Problem(
        "late", job.job_type, what, remedy, job.overdue_run_id, job.overdue_since, len(waits)
    )


def _paused(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if (
        not job.paused
        or job.paused_at is None
        or job.paused_until is not None
        or job.retired_at is not None
    ):
        return
    if health.now - job.paused_at > thresholds.max_paused:
        by = f" by {job.paused_by}" if job.paused_by else ""
        reason = f": {job.paused_reason}" if job.paused_reason else ""
        what = f"{job.job_type}: paused for {between(job.paused_at, health.now)}{by}{reason}"
        yield Problem(
            "paused",
            job.job_type,
            what,
            f"yamlsched resume {job.job_type}, or pause it with --until",
        )


JOB_CHECKS: tuple[Callable[[JobHealth, Health, Thresholds], Iterator[Problem]], ...] = (
    _dead,
    _dead_calls,
    _failing,
    _streak,
    _late,
    _paused,
)


@dataclass(frozen=True)
class NamespaceHealth:
    """The health of a namespace, and what needs attention in it."""

    health: Health
    problems: list[Problem]

    @property
    def jobs(self) -> int:
        """The number of jobs that the file in use has."""
        return self.health.totals.jobs

    @property
    def open_runs(self) -> int:
        totals = self.health.totals
        return totals.queued + totals.running + totals.failed

    @property
    def is_in_use(self) -> bool:
        """Return whether the namespace has jobs, unfinished work, or a place that ticks."""
        now = self.health
        has_places = any(file.places for file in now.files) or bool(now.refused)
        return bool(self.jobs or self.open_runs or now.in_doubt_counts or has_places)

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: the most severe problem, then the number of problems, then the
        name.
        """
        worst = KINDS.index(self.problems[0].kind) if self.problems else len(KINDS)
        return worst, -len(self.problems), self.health.namespace


def read_all(
    connection: psycopg.Connection[Any], thresholds: Thresholds, max_suspects: int | None = None
) -> tuple[list[NamespaceHealth], list[str]]:
    """Return the namespaces that are in use, worst first, and the names of the others.

    With ``max_suspects``, only the rows of so many jobs are read, of those with problems.
    ``thresholds`` must have no limits for all jobs then; see ``states.suspects``.
    """
    names = runs.namespaces(connection)
    known, jobs = states.states(connection, names, thresholds.within), None
    if max_suspects is not None:
        jobs = states.suspects(job for jobs in known.values() for job in jobs)[:max_suspects]
    read = health.read_all(connection, names, thresholds.within, jobs, known)
    namespaces = [NamespaceHealth(now, problems(now, thresholds)) for now in read]
    in_use = sorted(
        (state for state in namespaces if state.is_in_use), key=lambda state: state.rank
    )
    return in_use, [state.health.namespace for state in namespaces if not state.is_in_use]
