"""What ``tick`` and ``work`` share: their options, and how a tick goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg

from yamlsched import log, store
from yamlsched.cli._settings import Settings
from yamlsched.handler_sessions import MIN_CONNECTIONS
from yamlsched.sync import Glance, ScheduleFile, glance, is_current, is_validated, sync

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.runs import Status
    from yamlsched.sync import Synced
    from yamlsched.worker.worker import Worker

OPTIONS = [
    click.option("--concurrency", type=click.IntRange(1, 1000), help="Runs at once on this host (cores, at least 4)."),
    click.option("--max-runs", type=click.IntRange(1), help="Claim no more than this many runs."),
    click.option(
        "--max-connections",
        type=click.IntRange(MIN_CONNECTIONS),
        help="Connections of one worker to the database, its handlers' included (5 + 2 for each run at once).",
    ),
    click.option(
        "--grace", default="30s", show_default=True, help="How long handlers may go on after SIGTERM, e.g. 30s."
    ),
    click.option("--path", "paths", multiple=True, help="A folder to import handlers from; may be repeated."),
]
HOUSEKEEPING = 5.0  # seconds of a tick, every few minutes


def work_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``OPTIONS``."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def look(connection: Connection[Any], schedule: ScheduleFile, migrate: bool) -> Glance:
    """Take the one look that tells what there is to do; bring the tables up to date first where that is allowed.

    Raises EnvironmentFailed where the tables are not those of this version.
    """
    try:
        seen = glance(connection, schedule)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn):
        store.migrations.ensure(connection, apply=migrate)
        return glance(connection, schedule)
    if not store.migrations.check(seen.version, apply=migrate):
        store.migrations.migrate(connection)
        seen = glance(connection, schedule)
    return seen


def synced(connection: Connection[Any], schedule: ScheduleFile, seen: Glance) -> Synced | None:
    """Sync if ``seen`` says that there is anything to sync; tell people what was found."""
    if is_current(seen, schedule) and not seen.has_due_jobs:
        return None
    result = sync(connection, schedule, seen=seen)
    for message in result.messages:
        print(message, file=sys.stderr)
    return result


def housekeep(connection: Connection[Any], namespace: str | None, seen: Glance) -> None:
    """Prune a little, where it is time to."""
    if seen.needs_housekeeping and namespace is not None:
        from yamlsched.operations import retention

        retention.housekeep(connection, namespace, HOUSEKEEPING)


def sound_jobs(schedule: ScheduleFile, result: Synced | None, seen: Glance) -> dict[str, Job]:
    """Return the jobs whose own entry in this host's file is sound, whatever is wrong elsewhere.

    Says which are left out, where no sync has said it.
    """
    from yamlsched import log
    from yamlsched.definitions.load import load

    if result is not None and result.loaded is not None:
        return result.loaded.jobs
    loaded = load(schedule.data, schedule.path, schedule.environment or None, is_validated(seen, schedule))
    left_out = [name for name in loaded.entries if name not in loaded.jobs]
    mistakes = sum(found.severity == "error" for found in loaded.diagnostics)
    if mistakes and (left_out or not loaded.jobs):
        jobs = ",".join(left_out) or "all"
        log.warning("jobs.left_out", file=schedule.path, jobs=jobs, mistakes=mistakes, see="yamlsched validate")
    return loaded.jobs


def a_worker(
    connection: Connection[Any],
    dsn: str,
    namespace: str,
    jobs: dict[str, Job],
    file: Path,
    max_seconds: float | None,
    options: dict[str, Any],
    stays: bool = False,
) -> Worker:
    """Return the worker that the options ask for. Closes ``connection``: no session must be open when it forks."""
    from yamlsched import durations
    from yamlsched.worker.start import prepare
    from yamlsched.worker.worker import Limits

    try:
        grace = durations.parse(options["grace"])
    except ValueError as error:
        raise click.UsageError(f"--grace: {error}") from error
    limits = Limits(
        max_seconds=max_seconds, max_runs=options["max_runs"], max_connections=options["max_connections"], grace=grace
    )
    return prepare(connection, dsn, namespace, jobs, file, limits, options["concurrency"], options["paths"], stays)


def tell(outcomes: Mapping[str, Status], all_is_well: bool | None = None) -> None:
    """Send the heartbeats that the environment asks for: of jobs, and of a tick unless ``all_is_well`` is None."""
    if any(name.startswith("YAMLSCHED_HEARTBEAT_URL") for name in os.environ):
        from yamlsched.operations import heartbeat

        heartbeat.send(os.environ, all_is_well, {job: status == "succeeded" for job, status in outcomes.items()})


def configure_log(settings: Settings) -> None:
    log.configure(settings.verbosity, settings.log_format == "json")
