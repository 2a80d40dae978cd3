"""What ``tick`` and ``work`` share: their options, and how a tick goes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import psycopg

from yamlsched import log, store
from yamlsched.cli._settings import Settings
from yamlsched.sync import Glance, ScheduleFile, glance, is_current, sync

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.sync import Synced

OPTIONS = [
    click.option("--concurrency", type=click.IntRange(1, 1000), help="Runs at once on this host (cores, at least 4)."),
    click.option("--max-runs", type=click.IntRange(1), help="Claim no more than this many runs."),
    click.option(
        "--grace", default="30s", show_default=True, help="How long handlers may go on after SIGTERM, e.g. 30s."
    ),
    click.option("--path", "paths", multiple=True, help="A folder to import handlers from; may be repeated."),
]


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


def work(
    connection: Connection[Any],
    dsn: str,
    namespace: str,
    schedule: ScheduleFile,
    settings: Settings,
    result: Synced | None,
    max_seconds: float | None,
    **options: Any,
) -> Counter[str]:
    """Carry out what is due, of the jobs whose own entry in this host's file is sound."""
    from yamlsched import durations
    from yamlsched.definitions.load import load
    from yamlsched.worker.start import drain
    from yamlsched.worker.worker import Limits

    try:
        grace = durations.parse(options["grace"])
    except ValueError as error:
        raise click.UsageError(f"--grace: {error}") from error
    loaded = result.loaded if result is not None and result.loaded is not None else None
    if loaded is None:
        loaded = load(schedule.data, schedule.path, schedule.environment or None)
    return drain(
        connection,
        dsn,
        namespace,
        loaded.jobs,
        settings.file,
        Limits(max_seconds=max_seconds, max_runs=options["max_runs"], grace=grace),
        options["concurrency"],
        options["paths"],
    )


def configure_log(settings: Settings) -> None:
    log.configure(settings.verbosity, settings.log_format == "json")
