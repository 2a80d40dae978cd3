"""``yamlsched work``: carry out what is due, once or for as long as it is let."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import a_worker, configure_log, look, sound_jobs, synced, tell, work_options

if TYPE_CHECKING:
    from yamlsched.sync import ScheduleFile


@click.command(
    cls=Verb,
    help="Carry out the runs that are due, and leave; without sync. With --loop stay, sync each minute, and begin what "
    "is enqueued within milliseconds: for containers and systemd, instead of a crontab line.",
)
@click.option("--loop", "stays", is_flag=True, help="Stay until SIGTERM; sync each minute.")
@click.option("--migrate", is_flag=True, help="With --loop: create the tables, or bring them up to date, first.")
@click.option("--max-seconds", type=click.FloatRange(1), help="Claim for this long.")
@work_options
@click.pass_obj
def command(settings: Settings, /, stays: bool, migrate: bool, max_seconds: float | None, **options: Any) -> int:
    from yamlsched.sync import ScheduleFile

    if migrate and not stays:
        raise click.UsageError('--migrate goes with --loop; before a single "work" there is "yamlsched migrate"')
    configure_log(settings)
    schedule = ScheduleFile.read(settings.file, settings.env)
    return (loop if stays else once)(settings, schedule, migrate, max_seconds, options)


def once(
    settings: Settings, schedule: ScheduleFile, migrate: bool, max_seconds: float | None, options: dict[str, Any]
) -> int:
    from yamlsched import store
    from yamlsched.errors import Refused
    from yamlsched.store import files
    from yamlsched.worker import progress

    with settings.database() as dsn, store.connect(dsn) as connection:
        seen = look(connection, schedule, settings.is_embedded)
        namespace = seen.namespace or files.stand_in(connection, schedule.presented(), None)
        jobs = sound_jobs(schedule, None, seen)
        if namespace is None:
            raise Refused(f'{settings.file} has not been applied to this database yet: run "yamlsched sync" first')
        worker = a_worker(connection, dsn, namespace, jobs, settings.file, max_seconds, options)
        tally = asyncio.run(worker.drain(progress.show))
    tell(tally.jobs)
    return 1 if tally.has_dead else 0


def loop(
    settings: Settings, schedule: ScheduleFile, migrate: bool, max_seconds: float | None, options: dict[str, Any]
) -> int:
    """Work and sync until told to stop. What dies meanwhile is logged, and is no failure of the loop."""
    from yamlsched import store
    from yamlsched.cli._loop import Syncing
    from yamlsched.worker import progress, systemd

    with settings.database() as dsn, store.connect(dsn) as connection:
        seen = look(connection, schedule, migrate or settings.is_embedded)
        result = synced(connection, schedule, seen)
        namespace = seen.namespace if result is None else result.namespace
        if namespace is None:
            return 1  # its mistakes have been told
        jobs = sound_jobs(schedule, result, seen)
        worker = a_worker(connection, dsn, namespace, jobs, settings.file, max_seconds, options, stays=True)
        syncing = Syncing(settings, dsn, schedule.sha256, seen.now)
        try:
            asyncio.run(worker.drain(syncing.keep, systemd.keep_told, progress.show))
        finally:
            tell(worker.tally.jobs)
    return 0
