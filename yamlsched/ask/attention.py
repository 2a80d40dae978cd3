"""What of the health of a namespace needs attention, and the command that shows or
fixes it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from yamlsched import durations
from yamlsched.ask.gaps import pause_words
from yamlsched.ask.health import Health, JobHealth
from yamlsched.ask.problem import (
    Deaths,
    Problem,
    Thresholds,
    deaths,
    show_and_retry,
    worst_first,
)
from yamlsched.ask.queues import MAX_NAMES, by_run, waiting_jobs
from yamlsched.durations import approximate, between
from yamlsched.handler.once import settle_command
from yamlsched.runs.lifecycle import DEFAULT_QUEUE, error_text
from yamlsched.show.terminal import count
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


def problems(health: Health, thresholds: Thresholds) -> list[Problem]:
    """Return what exceeds ``thresholds``, worst first."""
    reported = {job.job_type for job in health.jobs if job.dead_within > thresholds.max_dead}
    problems = [
        *_ticks(health, thresholds),
        *_files(health),
        *_stuck(health),
        *_unwritten(health),
        *_cannot_start(health),
        *_unserved(health, thresholds),
        *_starts(health),
        *in_doubt(health),
        *_dead_total(health, thresholds),
        *_held_up(health, reported),
    ]
    for lost in health.lost_slots:
        problems.append(lost_slots(lost.job_type, lost.slots, lost.first_slot, lost.last_slot))
    for what in health.unsent:
        problems.append(Problem("notify", None, what, "yamlsched doctor --notify"))
    for calendar in health.calendars:
        if calendar.has_ended:
            remedy = "add the next dates and a later until to the calendar"
            problems.append(Problem("calendar", None, calendar.what, remedy))
    for job in health.jobs:
        problems += _job_problems(job, health, thresholds)
    problems += _dead(health, thresholds)
    return worst_first(problems, health.jobs)


def _ticks(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    what = ""
    if health.last_tick_at is None:
        what = f'there has been no tick in namespace "{health.namespace}"'
    elif health.now - health.last_tick_at > thresholds.max_tick_age:
        ago = between(health.last_tick_at, health.now)
        what = f"no tick for {ago}; the last came from {health.last_tick_host}"
    if what:
        yield Problem("tick", None, what, "yamlsched doctor")


def _files(health: Health) -> Iterator[Problem]:
    """Yield the files that are refused, that differ from the one in use, or that nothing is pruned
    by.
    """
    for refused in health.refused:
        remedy = (
            "correct --env, or use a separate namespace or database for each environment"
            if refused.is_other_environment
            else "run yamlsched validate there"
        )
        yield Problem("file", None, refused.sentence, remedy)
    current = health.file_in_use
    for file in health.drift:
        time = approximate(file.time_held(current))
        of = f"{current.hash[:8]} of {current.applied_by}" if current else "none"
        what = f"{file.first_places} has had another file ({file.hash[:8]}) for {time}"
        remedy = "deploy the same version to all hosts, or run yamlsched sync with the right file"
        yield Problem("file", None, f"{what}; the file in use is {of}", remedy)
    if current is not None and current.pruning:
        remedy = "correct the folder or retention.archive, then: yamlsched prune"
        yield Problem("prune", None, current.pruning, remedy)


def _unwritten(health: Health) -> Iterator[Problem]:
    """Yield the jobs whose due slots cannot be written."""
    problems = [
        Problem(
            "slots",
            job.job_type,
            f"{job.job_type}: its due slots cannot be written: {job.error}",
            "yamlsched sync",
        )
        for job in health.unwritten
    ]
    yield from _first(problems, "job", "whose due slots cannot be written", "yamlsched sync")


def _first(problems: list[Problem], noun: str, what: str, remedy: str) -> Iterator[Problem]:
    """Yield the first ``problems``, of one kind, and one for the others: ``remedy`` lists them."""
    yield from problems[:MAX_LISTED_PROBLEMS]
    if others := len(problems[MAX_LISTED_PROBLEMS:]):
        yield Problem(problems[0].kind, None, f"{count(others, f'more {noun}')} {what}", remedy)


def _cannot_start(health: Health) -> Iterator[Problem]:
    """Yield the jobs that no host can start. What one host can start is not a problem: the run goes
    there.
    """
    by_job = {
        entries[0].job_type: entries
        for entries in reversed(health.cannot_start_by_reason())
        if entries[0].is_everywhere
    }
    problems = []
    for name, entries in sorted(by_job.items()):
        entry = entries[0]
        places = join_first([each.place for each in entries], MAX_NAMES)
        remedy = (
            "on a host that is to run it, install what is missing, or set the variable in the"
            " crontab, systemd unit or container of yamlsched tick or work; or correct"
            " schedules.yaml"
        )
        since = rfc3339(entry.since, "seconds")
        what = f"no host can start job {name}: {entry.reason}, on {places} since {since}"
        if able := entry.able_but_down(health.now):
            remedy = f"start the ticks of {entry.down[0]} again"
            what = f"no host can start job {name}: {able}; {places} cannot: {entry.reason}"
        problems.append(Problem("lack", name, what, remedy, since=entry.since))
    yield from _first(problems, "job", "that no host can start", "yamlsched status")


def _unserved(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield the queues of jobs that nobody serves: at once, or, if its workers are there only while
    runs wait, when some wait for too long. If nothing ticks, that is the problem.
    """
    waiting = {
        queue.queue: queue.oldest_due_at
        for queue in health.queues
        if queue.oldest_due_at is not None and not queue.starting and not queue.executing
    }
    for each in () if any(_ticks(health, thresholds)) else health.unserved:
        since = waiting.get(each.queue, health.now)
        if each.is_on_demand and health.now - since <= UNSERVED_TOLERANCE:
            continue
        option = "" if each.queue == DEFAULT_QUEUE else f" --queue {each.queue}"
        remedy = f"yamlsched tick{option} in a crontab, or yamlsched work --loop{option}"
        yield Problem("start", None, each.in_words(health.now), remedy, since=each.served_at)


def _starts(health: Health) -> Iterator[Problem]:
    """Yield the queues whose workers do not start."""
    for queue in health.queues:
        if queue.failed_starts >= MAX_FAILED_STARTS:
            remedy = "correct the queue's start command or its engine; the next start uses it"
            what = f"queue {queue.queue}: {queue.starts_in_words}"
            yield Problem("start", None, what, remedy, since=queue.oldest_due_at)


def _stuck(health: Health) -> Iterator[Problem]:
    problems = [
        Problem(
            "stuck",
            run.job_type,
            f"run {run.run_id} of {run.job_type} is stuck: {run.why}; its worker is {run.worker}",
            f"yamlsched show {run.run_id}",
            run.run_id,
        )
        for run in health.stuck
    ]
    yield from _first(problems, "run", "beyond lease or timeout", "yamlsched runs --status running")


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
    if more := health.effects_in_doubt("person") - len(listed):
        what = f"{more} more {'effect is' if more == 1 else 'effects are'} in doubt"
        yield Problem("in_doubt", None, what, "the view yamlsched.effects_in_doubt lists them")


def _dead_total(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    dead = sum(job.dead_within for job in health.jobs)
    if thresholds.max_dead_total is not None and dead > thresholds.max_dead_total:
        span, limit = durations.show(thresholds.within), thresholds.max_dead_total
        what = f"{count(dead, 'run')} of all jobs died within {span}; the limit is {limit}"
        yield Problem("dead", None, what, f"yamlsched runs --status dead --since {span}")


def lost_slots(job: str, slots: int, first: datetime, last: datetime) -> Problem:
    """Return the problem that ``slots`` of ``job`` were not run: they were too old."""
    number, to = (
        ("1 slot was", "") if slots == 1 else (f"{slots} slots were", f" --to {short_utc(last)}")
    )
    what = f"{job}: {number} not run: too old when a run could start"
    remedy = f"yamlsched backfill {job} --from {short_utc(first)}{to} runs those you still need"
    return Problem("skipped", job, what, remedy)


def _held_up(health: Health, reported: set[str]) -> Iterator[Problem]:
    """Yield the jobs that wait for a dead or cancelled run, unless the problem of that run names
    them.
    """
    for held_up in by_run(each for each in health.held_up if each.upstream not in reported):
        names, root = [each.job_type for each in held_up], held_up[0]
        are = "is" if len(names) == 1 else "are"
        what = f"{join_first(names, MAX_NAMES)} {are} held up by {root.because(health.now)}"
        remedy = show_and_retry(root.run_id)
        yield Problem(
            "held_up", root.upstream, what, remedy, root.run_id, root.ended_at, len(names)
        )


def _job_problems(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield what is wrong with one job."""
    name = job.job_type
    if job.failing > thresholds.max_failing and job.failing_run_id is not None:
        run = job.failing_run_id
        several = "" if job.failing == 1 else f"{job.failing} runs are failing: "
        attempts = f"{job.failing_attempts} of {job.failing_max_attempts} attempts"
        error = _after_colon(job.failing_error_type, job.failing_error)
        what = f"{name}: {several}run {run} has failed {attempts}{error}{_changed(job)}"
        yield Problem("failing", name, what, f"yamlsched show {run}", run, job.last_failure_at)
    if thresholds.max_streak is not None and job.attempt_streak > thresholds.max_streak:
        attempts = count(job.attempt_streak, "failed attempt")
        error = _after_colon(job.last_error_type, job.last_error)
        what = f"{name}: {attempts} since the last success{error}"
        last = job.last_failure_run_id
        yield Problem("failing", name, what, f"yamlsched show {last}", last)
    if job.late_since is not None and job.late_why != NOT_RUN:  # reported by themselves
        yield _late(job, job.late_since, health)
    has_no_end = job.paused and job.paused_until is None and job.retired_at is None
    if has_no_end and job.paused_at is not None:
        what = f"{name}: paused for {between(job.paused_at, health.now)}{pause_words(job)}"
        remedy = f"yamlsched resume {name}"
        if job.paused_after is not None:
            yield Problem("paused", name, what, remedy, since=job.paused_at)
        elif health.now - job.paused_at > thresholds.max_paused:
            yield Problem("paused", name, what, f"{remedy}, or pause it with --until")


def _dead(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    """Yield a problem for each cause of which runs died, with what waits for them."""
    waits = waiting_jobs(health.held_up)
    died = [
        Deaths(
            job.job_type,
            job.dead_error_type or "",
            job.dead_within,
            job.dead_run_id,
            error_text(job.dead_error_type, job.dead_error),
            job.changed,
            job.dead_since,
            waits.get(job.job_type, ()),
            job.owner,
        )
        for job in health.jobs
        if job.dead_within > thresholds.max_dead
    ]
    span = durations.show(thresholds.within)
    return deaths(died, span, f" within {span}")


def _late(job: JobHealth, since: datetime, health: Health) -> Problem:
    """Return the problem that a job is late."""
    name, run = job.job_type, job.late_run_id
    what = f"{name}: late by {between(since, health.now)}: {job.late_why}"
    remedy = "yamlsched doctor" if job.late_why == NO_SYNC else f"yamlsched why {name}"
    if run is not None:
        what += f": run {run} is dead"
        remedy = show_and_retry(run)
    elif root := [each for each in health.held_up if each.job_type == name]:
        what += f"; held up by {root[0].because(health.now)}"
        remedy = show_and_retry(root[0].run_id)
    waits = [each.job_type for each in health.held_up if each.run_id == run]
    return Problem("late", name, what, remedy, run, since, len(waits))


def _changed(job: JobHealth) -> str:
    return f"; {job.changed}" if job.changed else ""


def _after_colon(error_type: str | None, message: str | None) -> str:
    error = error_text(error_type, message)
    return f": {error}" if error else ""
