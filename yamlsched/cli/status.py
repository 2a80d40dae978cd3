"""``yamlsched status``: health on one screen, and for monitors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from yamlsched.ask import attention, health
from yamlsched.ask.edits import label
from yamlsched.ask.health import HEALTHY_STATES, Health, JobHealth, note
from yamlsched.ask.namespaces import summary
from yamlsched.ask.places import cannot_start
from yamlsched.ask.problem import Problem, Thresholds
from yamlsched.ask.queues import QueueHealth, by_run, held_up_in_words
from yamlsched.ask.runs import namespaces
from yamlsched.cli import FINDINGS, OK, _filters, _tables
from yamlsched.cli._settings import Settings, verb
from yamlsched.durations import between
from yamlsched.show import terminal
from yamlsched.show.document import (
    Document,
    Entries,
    Entry,
    Facts,
    Part,
    Problems,
    Section,
    and_more,
)
from yamlsched.show.html import FORMATS
from yamlsched.text import did_you_mean, join_first
from yamlsched.timetable.zones import zone_or_utc

MAX_JOBS_LISTED = 30
"""Of more jobs, the healthy ones are only counted."""
MAX_HOSTS_LISTED = 8
MAX_LISTED_UNSTARTABLE = 10
HEADINGS = ("job", "state", "last success", "last failure", "streak", "next slot", "open", "note")


@verb(
    "Show the health of the jobs. With --check, print one line for each problem, and exit 1 if"
    " any.",
    formats=tuple(FORMATS),
)
@click.option(
    "--check", is_flag=True, help="Print only problems, for monitors, cron mail and health checks."
)
@click.option(
    "--max-dead",
    type=click.IntRange(0),
    default=0,
    help="Dead runs tolerated per job.",
)
@click.option(
    "--max-dead-total", type=click.IntRange(0), help="Dead runs tolerated over all jobs (no limit)."
)
@_filters.duration_option(
    "--within",
    default="1h",
    help="Count the runs that died within this time.",
)
@click.option(
    "--max-failing",
    type=click.IntRange(0),
    default=0,
    help="Runs that fail again and again, tolerated per job.",
)
@click.option(
    "--max-streak",
    type=click.IntRange(0),
    help="Failed attempts since its last success tolerated per job (no limit).",
)
@_filters.duration_option(
    "--max-tick-age",
    default="5m",
    help="How old the last tick may be.",
)
@_filters.duration_option(
    "--max-paused",
    default="7d",
    help="How old a pause without an end may be.",
)
@click.option("--all", "show_all", is_flag=True, help="List all jobs, healthy ones included.")
@click.option(
    "--all-namespaces", is_flag=True, help="Show all namespaces of the database, worst first."
)
def command(
    settings: Settings,
    /,
    check: bool,
    show_all: bool,
    all_namespaces: bool,
    within: timedelta,
    **limits: Any,
) -> int:
    if check and settings.format not in ("text", "json"):
        raise click.UsageError("--check prints lines or JSON: leave out --format")
    thresholds = Thresholds(within=within, **limits)
    if all_namespaces:
        return _tables.show(settings, thresholds, check, show_all)
    with settings.connect_in() as (connection, namespace):
        now = health.read(connection, namespace, within)
        known = []
        if now.last_tick_at is None and not now.queue["jobs"] and not check:
            known = namespaces(connection)
    problems = attention.problems(now, thresholds)
    if settings.wants_json or not check:
        parts = list(in_words(now, problems, show_all))
        if known and namespace not in known:
            meant = did_you_mean(
                namespace, known, f"There are: {join_first(known, MAX_HOSTS_LISTED)}"
            )
            parts.append(
                Entries([Entry(f'No job and no file has namespace "{namespace}". {meant}')])
            )
        document = Document(f"yamlsched status: {namespace}", parts)
        settings.echo(FORMATS[settings.format](document), **summary(now, thresholds))
    elif problems:
        click.echo("\n".join(terminal.printable_line(problem.what) for problem in problems))
    else:
        click.echo(
            f"ok: {terminal.count(now.queue['jobs'], 'job')}, last tick"
            f" {terminal.ago(now.last_tick_at, now.now)}"
        )
    return FINDINGS if check and problems else OK


def in_words(health: Health, problems: list[Problem], show_all: bool) -> Iterator[Part]:
    """Yield the namespace, its jobs, and what needs attention."""
    jobs = present = [job for job in health.jobs if job.is_present]
    if not show_all and len(present) > MAX_JOBS_LISTED:
        jobs = [job for job in present if job.state not in HEALTHY_STATES]
    healthy = len(present) - len(jobs)
    omitted = f"and {healthy} more are healthy: --all lists them" if healthy else ""
    yield Facts(list(heading(health)), "" if jobs else omitted)
    if jobs:
        yield Section("", HEADINGS, [line(job, health) for job in jobs], omitted)
    if problems:
        more = and_more(len(problems) - MAX_JOBS_LISTED, "yamlsched status --check")
        listed = [(problem.what, problem.remedy) for problem in problems[:MAX_JOBS_LISTED]]
        yield Problems("Needs attention", False, listed, more)
    elif not jobs and not omitted:
        yield Entries([Entry("no jobs yet: run yamlsched sync to apply schedules.yaml")])


def heading(health: Health) -> Iterator[tuple[str, str]]:
    now, total = health.now, health.queue
    yield "namespace", f"{health.namespace} at {terminal.instant(now)}"
    yield from files(health)
    last = (
        f"{terminal.ago(health.last_tick_at, now)}, by {health.last_tick_host}"
        if health.last_tick_at
        else "never"
    )
    yield "last tick", last
    oldest = total["oldest_due_at"]
    due = f"; oldest due {terminal.ago(oldest, now)}" if oldest else ""
    runs = "{queued} queued, {running} running, {failed} waiting to retry".format(**total)
    yield "runs", runs + due
    for nth, each in enumerate(health.queues):
        yield "" if nth else "queues", f"{each.queue}: {queue_in_words(each, now)}"
    for nth, waits in enumerate(health.limits):
        yield "" if nth else "limits", f"a run {waits}"
    for nth, held_up in enumerate(by_run(health.held_up)[:MAX_HOSTS_LISTED]):
        yield "" if nth else "held up", held_up_in_words(held_up, now)
    dead = "{dead_last_hour} in the last hour, {dead_last_day} in the last day"
    yield "dead", dead.format(**total)
    if health.in_doubt_counts:
        effects = terminal.count(health.effects_in_doubt("person"), "effect")
        retried = health.effects_in_doubt("retry")
        yield "in doubt", f"{effects} for you to settle, {retried} that the run's retry resolves"
    hosts = [
        (
            f"{w.host} ({w.running} running)"
            if w.running
            else f"{w.host} ({terminal.ago(w.seen_at, now)})"
        )
        for w in health.workers
    ]
    more = f" and {len(hosts) - MAX_HOSTS_LISTED} more" if len(hosts) > MAX_HOSTS_LISTED else ""
    yield "workers", ", ".join(hosts[:MAX_HOSTS_LISTED]) + more or "none in the last hour"


def queue_in_words(queue: QueueHealth, now: datetime) -> str:
    """Return how much there is to do in a queue, who does it, and what is wrong with starts."""
    waits = f" (waiting for {between(queue.oldest_due_at, now)})" if queue.oldest_due_at else ""
    others = (("starting", queue.starting), ("leaving", queue.leaving))
    more = "".join(f", {count} {word}" for word, count in others if count)
    workers = f"{terminal.count(queue.live, 'live worker')}{more}"
    text = f"{queue.due} to start{waits}, {queue.executing} executing, {workers}"
    if not queue.failed_starts:
        return text
    is_later = queue.next_start_at is not None and queue.next_start_at > now
    at = f"; next start after {terminal.instant(queue.next_start_at)}" if is_later else ""
    return f"{text}; {queue.starts_in_words}{at}"


def files(health: Health) -> Iterator[tuple[str, str]]:
    """Yield the file in use, and what other places have."""
    file = health.file_in_use
    if file is None:
        yield "file", "none has been applied"
    else:
        of = f" for {file.environment}" if file.environment else ""
        since = terminal.instant(file.applied_at)
        yield "file", f"{file.hash[:8]}{of} in use since {since}, applied by {file.applied_by}"
        if file.commit is not None:
            yield "", label(file)
    drifted = health.drift
    for other in health.other_files:
        since = terminal.instant(other.since)
        text = f"{other.first_places} has {other.hash[:8]} since {since}, which is not in use"
        yield "", terminal.coloured("late", text) if other in drifted else text
    late = [
        *(file.sentence for file in health.refused),
        *(calendar.what for calendar in health.calendars if calendar.has_ended),
    ]
    lacking = health.cannot_start_by_reason()
    late += [cannot_start(entries, health.now) for entries in lacking[:MAX_LISTED_UNSTARTABLE]]
    yield from (("", terminal.coloured("late", line)) for line in late)
    yield from (("", calendar.what) for calendar in health.calendars if not calendar.has_ended)
    if more := len(lacking[MAX_LISTED_UNSTARTABLE:]):
        yield "", f"{more} more: yamlsched status --format json"


def line(job: JobHealth, health: Health) -> tuple[str, ...]:
    return (
        job.job_type,
        terminal.coloured(job.state, job.state.replace("_", " ")),
        terminal.ago(job.last_success_at, health.now),
        terminal.ago(job.last_failure_at, health.now),
        streak(job),
        next_slot(job) if job.schedule and job.enabled and job.retired_at is None else "-",
        str(job.queued + job.running + job.failed or "-"),
        note(job, health),
    )


def next_slot(job: JobHealth) -> str:
    """Return the next slot in UTC and on the clock of its zone: ``2026-01-14T01:30:00Z (02:30
    CET)``.
    """
    if job.next_slot_at is None or job.timezone == "UTC":
        return terminal.instant(job.next_slot_at)
    return (
        f"{terminal.instant(job.next_slot_at)}"
        f" ({job.next_slot_at.astimezone(zone_or_utc(job.timezone)):%H:%M %Z})"
    )


def streak(job: JobHealth) -> str:
    """Return how many runs have failed since the last success; if they had more attempts, also how
    many attempts.
    """
    attempts = (
        f" ({job.attempt_streak} attempts)" if job.attempt_streak > job.failure_streak else ""
    )
    return f"{job.failure_streak or '-'}{attempts}"
