"""``yamlsched status``: health at a glance, and for monitors."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from yamlsched.cli import FINDINGS, OK, _filters, _output
from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.operations.health import Health, JobHealth, Problem

MAX_JOBS_LISTED = 30
"""So many jobs are listed whole; of more, those that are well are only counted."""
HEALTHY_STATES = ("ok", "running", "new")


@click.command(
    cls=Verb, help="Show the state of the jobs. With --check, exit 1 and print one line per problem, if there are any."
)
@click.option("--check", is_flag=True, help="Print only problems, for monitors, cron mail and health checks.")
@click.option("--max-dead", type=click.IntRange(0), default=0, show_default=True, help="Dead runs tolerated per job")
@click.option(
    "--within", type=_filters.duration, default="1h", show_default=True, help="Period in which dead runs are counted."
)
@click.option(
    "--max-late",
    type=_filters.duration,
    default="15m",
    show_default=True,
    help="Tolerated delay of a slot or a due run.",
)
@click.option(
    "--max-tick-age",
    type=_filters.duration,
    default="5m",
    show_default=True,
    help="Tolerated time since the last tick.",
)
@click.option("--all", "show_all", is_flag=True, help="List all jobs, healthy ones included.")
@_filters.namespace_option
@click.pass_obj
def command(
    settings: Settings,
    /,
    check: bool,
    max_dead: int,
    within: timedelta,
    max_late: timedelta,
    max_tick_age: timedelta,
    show_all: bool,
    namespace: str | None,
) -> int:
    from yamlsched.operations import health, history

    with settings.connect() as connection:
        namespace = history.namespace_of(connection, namespace, settings.file)
        now = health.read(connection, namespace, within)
    thresholds = health.Thresholds(max_dead, within, max_late, max_tick_age)
    problems = health.problems(now, thresholds)
    if settings.wants_json:
        click.echo(document(now, problems))
    elif check:
        for problem in problems:
            click.echo(_output.printable_cell(problem.what))
        if not problems:
            jobs = [job for job in now.jobs if job.retired_at is None]
            click.echo(f"ok: {_output.count(len(jobs), 'job')}, last tick {_output.ago(now.last_tick_at, now.now)}")
    else:
        click.echo(screen(now, problems, show_all))
    return FINDINGS if check and problems else OK


def document(health: Health, problems: list[Problem]) -> str:
    from yamlsched.operations.health import drift, effects_in_doubt, in_force, state

    return _output.document(
        namespace=health.namespace,
        now=health.now,
        healthy=not problems,
        problems=problems,
        last_tick_at=health.last_tick_at,
        file_in_force=in_force(health),
        other_files=drift(health),
        refused_files=health.refused,
        queue=queue(health),
        workers=health.workers,
        stuck=health.stuck,
        in_doubt=health.in_doubt,
        in_doubt_counts={waits_for: effects_in_doubt(health, waits_for) for waits_for in ("person", "retry")},
        jobs=[{**asdict(job), "state": state(job, health)} for job in health.jobs],
    )


def queue(health: Health) -> dict[str, object]:
    """Return what is unfinished, and what died, over all jobs."""
    due = [job.oldest_due_at for job in health.jobs if job.oldest_due_at is not None]
    return {
        "queued": sum(job.queued for job in health.jobs),
        "running": sum(job.running for job in health.jobs),
        "failed": sum(job.failed for job in health.jobs),
        "oldest_due_at": min(due, default=None),
        "dead_last_hour": sum(job.dead_last_hour for job in health.jobs),
        "dead_last_day": sum(job.dead_last_day for job in health.jobs),
    }


def screen(health: Health, problems: list[Problem], show_all: bool) -> str:
    """Return the one screen: the whole, the jobs, and what to do."""
    lines = [f"{name:<10} {_output.printable_cell(text)}" for name, text in heading(health)]
    jobs, well = listed(health, show_all)
    if jobs:
        headings = ("JOB", "STATE", "LAST SUCCESS", "LAST FAILURE", "STREAK", "NEXT SLOT", "OPEN", "NOTE")
        lines += ["", _output.table(headings, [line(job, health) for job in jobs])]
    if well:
        lines.append(f"and {well} more are healthy: --all lists them")
    if problems:
        lines += ["", _output.bold("Needs attention")]
        for problem in problems[:MAX_JOBS_LISTED]:
            lines += [f"  {_output.printable_cell(problem.what)}", f"      {problem.remedy}"]
        if len(problems) > MAX_JOBS_LISTED:
            lines.append(f"  and {len(problems) - MAX_JOBS_LISTED} more: yamlsched status --check")
    elif not jobs and not well:
        lines += ["", "no jobs yet: run yamlsched sync to apply schedules.yaml"]
    return "\n".join(lines)


def heading(health: Health) -> list[tuple[str, str]]:
    from yamlsched.operations.health import drift, in_force, refusal

    now, total = health.now, queue(health)
    file = in_force(health)
    oldest = min((job.oldest_due_at for job in health.jobs if job.oldest_due_at is not None), default=None)
    due = f"; oldest due {_output.ago(oldest, now)}" if oldest else ""
    hosts = [
        f"{w.host} ({w.running} running)" if w.running else f"{w.host} ({_output.ago(w.seen_at, now)})"
        for w in health.workers
    ]
    parts = [
        ("namespace", f"{health.namespace} at {_output.instant(now)}"),
        (
            "file",
            f"{file.hash[:8]}{f' for {file.environment}' if file.environment else ''} in force since "
            f"{_output.instant(file.applied_at)}, applied by {file.applied_by}"
            if file
            else "none has been applied",
        ),
    ]
    for other in drift(health):
        parts.append(
            (
                "",
                _output.coloured(
                    "late",
                    f"{other.hash[:8]} is presented by {', '.join(other.presented_by[:3])} "
                    f"since {_output.instant(other.presented_since_at)}, and is not in force",
                ),
            )
        )
    parts += [("", _output.coloured("late", refusal(file))) for file in health.refused]
    if health.last_tick_at:
        parts.append(("last tick", f"{_output.ago(health.last_tick_at, now)}, by {health.last_tick_host}"))
    else:
        parts.append(("last tick", "never"))
    parts += [
        ("queue", f"{total['queued']} queued, {total['running']} running, {total['failed']} waiting to retry{due}"),
        ("dead", f"{total['dead_last_hour']} in the last hour, {total['dead_last_day']} in the last day"),
        *_in_doubt(health),
        (
            "workers",
            ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "") or "none in the last hour",
        ),
    ]
    return parts


def _in_doubt(health: Health) -> list[tuple[str, str]]:
    from yamlsched.operations.health import effects_in_doubt

    if not health.in_doubt_counts:
        return []
    for_person, for_retry = (effects_in_doubt(health, waits_for) for waits_for in ("person", "retry"))
    return [
        ("in doubt", f"{_output.count(for_person, 'effect')} to settle, {for_retry} to be resolved by the run's retry")
    ]


def listed(health: Health, show_all: bool) -> tuple[list[JobHealth], int]:
    """Return the jobs to list, and how many that are well are left out. Retired jobs appear while they have runs."""
    from yamlsched.operations.health import state

    jobs = [job for job in health.jobs if job.retired_at is None or job.queued or job.running or job.failed]
    if show_all or len(jobs) <= MAX_JOBS_LISTED:
        return jobs, 0
    shown = [job for job in jobs if state(job, health) not in HEALTHY_STATES]
    return shown, len(jobs) - len(shown)


def line(job: JobHealth, health: Health) -> tuple[str, ...]:
    from yamlsched.operations.health import state

    return (
        job.job_type,
        _output.coloured(state(job, health)),
        _output.ago(job.last_success_at, health.now),
        _output.ago(job.last_failure_at, health.now),
        str(job.failure_streak or "-"),
        _output.instant(job.next_slot_at) if job.schedule and job.enabled and job.retired_at is None else "-",
        str(job.queued + job.running + job.failed or "-"),
        note(job, health),
    )


def note(job: JobHealth, health: Health) -> str:
    """Return what explains the state of ``job``."""
    if job.paused:
        until = f" until {_output.instant(job.paused_until)}" if job.paused_until else ""
        return (
            f"paused by {job.paused_by or 'an operator'}{until}{f': {job.paused_reason}' if job.paused_reason else ''}"
        )
    if job.overdue_since:
        return f"since {_output.instant(job.overdue_since)}: {job.overdue_why}"
    if job.failure_streak:
        return job.last_error or ""
    if job.open_slot_run_id and job.next_slot_at and job.next_slot_at < health.now:
        return f"the next slot waits for run {job.open_slot_run_id}"
    return ""
