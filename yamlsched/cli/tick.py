"""``yamlsched tick``: the one crontab line. Sync, then work, then leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import a_worker, configure_log, housekeep, look, sound_jobs, synced, tell, work_options

if TYPE_CHECKING:
    from yamlsched.runs import Status

CLAIMS_FOR = 55.0  # seconds: the next minute's tick takes over


@click.command(
    cls=Verb,
    help="Apply schedules.yaml if it changed, make the runs of due slots, carry out what is due, and leave. "
    "Meant for crontab, each minute. Prints nothing when nothing happened.",
)
@click.option("--migrate", is_flag=True, help="Create the tables, or bring them up to date, on a server too.")
@click.option(
    "--max-seconds", type=click.FloatRange(1), default=CLAIMS_FOR, show_default=True, help="Claim for this long."
)
@work_options
@click.pass_obj
def command(settings: Settings, /, migrate: bool, max_seconds: float, **options: Any) -> int:
    configure_log(settings)
    outcomes: dict[str, Status] = {}
    is_well = False
    try:
        is_well = tick(settings, migrate, max_seconds, options, outcomes)
    finally:
        tell(outcomes, is_well)
    return 0 if is_well else 1


def tick(
    settings: Settings, migrate: bool, max_seconds: float, options: dict[str, Any], outcomes: dict[str, Status]
) -> bool:
    """Do what there is to do, add to ``outcomes`` what became of jobs, and return whether all went well."""
    from yamlsched import store
    from yamlsched.sync import ScheduleFile

    schedule = ScheduleFile.read(settings.file, settings.env)
    with settings.database() as dsn, store.connect(dsn) as connection:
        seen = look(connection, schedule, migrate or settings.is_embedded)
        result = synced(connection, schedule, seen)
        namespace = seen.namespace if result is None else result.namespace
        has_findings = result is not None and result.has_findings
        housekeep(connection, namespace, seen)
        if namespace is not None and (seen.has_claimable_runs or result is not None):
            import asyncio

            jobs = sound_jobs(schedule, result, seen)
            worker = a_worker(connection, dsn, namespace, jobs, settings.file, max_seconds, options)
            try:
                tally = asyncio.run(worker.drain())
            finally:
                outcomes.update(worker.tally.jobs)
            has_findings = has_findings or tally.has_dead
    return not has_findings
