"""``yamlsched work``: carry out what is due, once or for as long as it is let."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import (
    configure_log,
    poll_ready,
    read_schedule,
    report,
    send_heartbeats,
    sync_if_needed,
    work_options,
    worker_for,
)
from yamlsched.sync import claimable_jobs, inspect_file

if TYPE_CHECKING:
    from yamlsched.sync import ScheduleFile


@click.command(
    cls=Verb,
    uses="file dsn env logging",
    formats=("text",),
    help="Run everything that is due, then exit; does not sync. With --loop, keep running, sync each minute, and start "
    "enqueued runs within milliseconds: for containers and systemd, instead of a crontab line.",
)
@click.option("--loop", "stays", is_flag=True, help="Run until SIGTERM; sync each minute.")
@click.option("--migrate", is_flag=True, help="With --loop: create or upgrade the tables first.")
@click.option("--max-seconds", type=click.FloatRange(1), help="Claim runs for this many seconds.")
@work_options
@click.pass_obj
def command(settings: Settings, /, stays: bool, migrate: bool, max_seconds: float | None, **options: Any) -> int:
    if migrate and not stays:
        raise click.UsageError('--migrate requires --loop; before a single "work", run "yamlsched migrate"')
    configure_log(settings)
    schedule = read_schedule(settings, options)
    return (loop if stays else once)(settings, schedule, migrate, max_seconds, options)


def once(
    settings: Settings, schedule: ScheduleFile, migrate: bool, max_seconds: float | None, options: dict[str, Any]
) -> int:
    from yamlsched import store
    from yamlsched.errors import Refused
    from yamlsched.worker import progress

    with settings.database() as dsn, store.connect(dsn) as connection:
        snapshot = poll_ready(connection, schedule, settings.is_embedded)
        found = inspect_file(connection, schedule, snapshot)
        report(found)
        if found.namespace is None:
            raise Refused(f'{settings.file} has not been applied to this database yet: run "yamlsched sync" first')
        if not found.may_claim:
            return 1
        jobs = claimable_jobs(connection, schedule, found)
        worker = worker_for(connection, dsn, found.namespace, jobs, settings.file, max_seconds, options)
        run_report = asyncio.run(worker.run(progress.show))
    send_heartbeats(run_report.jobs)
    return int(run_report.has_dead or found.has_findings)


def loop(
    settings: Settings, schedule: ScheduleFile, migrate: bool, max_seconds: float | None, options: dict[str, Any]
) -> int:
    """Work and sync until told to stop. What dies meanwhile is logged, and is no failure of the loop."""
    from yamlsched import store
    from yamlsched.cli._loop import SyncTask
    from yamlsched.worker import progress, systemd

    with settings.database() as dsn, store.connect(dsn) as connection:
        snapshot = poll_ready(connection, schedule, migrate or settings.is_embedded)
        result = sync_if_needed(connection, schedule, snapshot)
        report(result)
        if not result.may_claim:
            return 1
        namespace = str(result.namespace)
        jobs = claimable_jobs(connection, schedule, result)
        worker = worker_for(connection, dsn, namespace, jobs, settings.file, max_seconds, options, is_continuous=True)
        hash = schedule.sha256 if result.is_readable else None
        valid = result.jobs or {}
        sync_task = SyncTask(settings, options, dsn, namespace, hash, valid, frozenset(jobs), snapshot.now)
        try:
            asyncio.run(worker.run(sync_task.run, systemd.keep_notified, progress.show))
        finally:
            send_heartbeats(worker.report.jobs)
    return 0
