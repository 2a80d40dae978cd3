"""``yamlsched tick``: the one crontab line. Sync, then work, then leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import (
    configure_log,
    housekeep,
    poll_ready,
    read_schedule,
    report,
    send_heartbeats,
    sync_if_needed,
    work_options,
    worker_for,
)
from yamlsched.sync import claimable_jobs

if TYPE_CHECKING:
    from yamlsched.runs import Status
    from yamlsched.worker.worker import Worker

CLAIMS_FOR = 55.0  # seconds: the next minute's tick takes over


@click.command(
    cls=Verb,
    uses="file dsn env logging",
    formats=("text",),
    help="Sync, run everything that is due, then exit: the crontab line. Meant to be called each minute. Applies "
    "schedules.yaml if it changed. Prints nothing if nothing happened.",
)
@click.option("--migrate", is_flag=True, help="Create or upgrade the tables first, on a server too.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(1),
    default=CLAIMS_FOR,
    show_default=True,
    help="Claim runs for this many seconds.",
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
        send_heartbeats(outcomes, is_well)
    return 0 if is_well else 1


def tick(
    settings: Settings, migrate: bool, max_seconds: float, options: dict[str, Any], outcomes: dict[str, Status]
) -> bool:
    """Do what there is to do, add to ``outcomes`` what became of jobs, and return whether all went well.

    Nothing that fails on the way to the work keeps it from being done if it can be; housekeeping comes last.
    """
    from yamlsched import store

    schedule = read_schedule(settings, options)
    with settings.database() as dsn:
        with store.connect(dsn) as connection:
            snapshot = poll_ready(connection, schedule, migrate or settings.is_embedded)
            result = sync_if_needed(connection, schedule, snapshot)
            report(result)
            is_well = not result.has_findings
            if not result.may_claim:
                return is_well
            namespace = str(result.namespace)
            if snapshot.has_claimable_runs or result.made is not None:
                jobs = claimable_jobs(connection, schedule, result)
                if jobs:
                    worker = worker_for(connection, dsn, namespace, jobs, settings.file, max_seconds, options)
                    is_well = _work(worker, outcomes) and is_well
        return housekeep(dsn, namespace, snapshot) and is_well


def _work(worker: Worker, outcomes: dict[str, Status]) -> bool:
    """Run what is due, and return whether no run died."""
    import asyncio

    try:
        return not asyncio.run(worker.run()).has_dead
    finally:
        outcomes.update(worker.report.jobs)
