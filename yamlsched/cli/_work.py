"""What ``tick`` and ``work`` share: their options, and how a tick goes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg

from yamlsched import log, store
from yamlsched.cli._settings import Settings
from yamlsched.errors import YamlschedError
from yamlsched.handling.sessions import MIN_CONNECTIONS
from yamlsched.store.connection import SESSION_SETTINGS, reason
from yamlsched.store.files import Snapshot
from yamlsched.sync import ScheduleFile, SyncResult, current, needs_sync, poll, sync

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.runs import Status
    from yamlsched.worker.worker import Worker

OPTIONS = [
    click.option(
        "--concurrency",
        type=click.IntRange(1, 1000),
        help="Maximum number of parallel runs on this host (number of cores, at least 4).",
    ),
    click.option("--max-runs", type=click.IntRange(1), help="Claim at most this many runs."),
    click.option(
        "--max-connections",
        type=click.IntRange(MIN_CONNECTIONS),
        help="Maximum database connections of one worker, including its handlers' (6 + 2 per parallel run).",
    ),
    click.option(
        "--grace",
        default="30s",
        show_default=True,
        help="How long handlers may keep running after SIGTERM, such as 30s.",
    ),
]
SYNC_OPTIONS = [
    click.option(
        "--skip-handler-checks",
        is_flag=True,
        help="Apply the file without checking handlers and payloads, for a host without the code.",
    ),
    click.option("--path", "paths", multiple=True, help="A folder to import handlers from; may be repeated."),
]
MAX_HOUSEKEEPING_SECONDS = 5.0  # seconds of a tick, every few minutes
# housekeeping waits for nobody: what it cannot do now, it does some minutes later
HOUSEKEEPING_SESSION = {**SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "1s"}


def sync_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that applies the file."""
    for option in reversed(SYNC_OPTIONS):
        function = option(function)
    return function


def work_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that runs handlers."""
    for option in reversed(OPTIONS):
        function = option(function)
    return sync_options(function)


def read_schedule(settings: Settings, options: Mapping[str, Any]) -> ScheduleFile:
    """Return the file, with where its handlers are looked for. Raises EnvironmentFailed if it cannot be read."""
    path = None if options["skip_handler_checks"] else tuple(options["paths"])
    return ScheduleFile.read(settings.file, settings.env, path)


def poll_ready(connection: Connection[Any], schedule: ScheduleFile, migrate: bool) -> Snapshot:
    """Poll the database; bring its tables up to date first where that is allowed.

    Raises EnvironmentFailed where the tables are not those of this version.
    """
    try:
        snapshot = poll(connection, schedule)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn):
        store.migrations.ensure_current(connection, apply=migrate)
        return poll(connection, schedule)
    if not store.migrations.is_current(snapshot.version, apply=migrate):
        store.migrations.migrate(connection)
        snapshot = poll(connection, schedule)
    return snapshot


def sync_if_needed(connection: Connection[Any], schedule: ScheduleFile, snapshot: Snapshot) -> SyncResult:
    """Sync if ``snapshot`` says that there is anything to sync."""
    found = None if needs_sync(snapshot, schedule) else current(snapshot, schedule)
    return found or sync(connection, schedule, snapshot=snapshot)


def report(result: SyncResult) -> None:
    """Show what a sync found."""
    messages = list(result.messages)
    if not result.is_readable:
        messages.append("no job of this file can run until it is fixed: its handlers are unknown")
    show_messages(messages)


def show_messages(messages: Sequence[str]) -> None:
    """Print what a sync found. It may quote what other hosts have written, which must not steer the terminal."""
    if not messages:
        return
    from yamlsched.cli._output import printable

    with contextlib.suppress(OSError):  # nobody reads it any more: the work is done all the same
        for message in messages:
            print(printable(message), file=sys.stderr)


def housekeep(dsn: str, namespace: str | None, snapshot: Snapshot) -> bool:
    """Prune a little, where it is time to; return whether that went well. A failure stops nothing else."""
    if not snapshot.needs_housekeeping or namespace is None:
        return True
    from yamlsched.operations import retention

    try:
        with store.connect(dsn, HOUSEKEEPING_SESSION) as connection:
            retention.housekeep(connection, namespace, MAX_HOUSEKEEPING_SECONDS)
    except (psycopg.Error, YamlschedError) as error:
        text = reason(error) if isinstance(error, psycopg.Error) else str(error)
        log.warning("housekeeping.failed", error=text)
        return False
    return True


def worker_for(
    connection: Connection[Any],
    dsn: str,
    namespace: str,
    jobs: Mapping[str, Job],
    file: Path,
    max_seconds: float | None,
    options: Mapping[str, Any],
    is_continuous: bool = False,
) -> Worker:
    """Return the worker that the options ask for. Closes ``connection``: no session must be open when it forks."""
    from yamlsched import durations
    from yamlsched.worker.start import create_worker
    from yamlsched.worker.worker import Limits

    try:
        grace = durations.parse(options["grace"])
    except ValueError as error:
        raise click.UsageError(f"--grace: {error}") from error
    limits = Limits(
        max_seconds=max_seconds, max_runs=options["max_runs"], max_connections=options["max_connections"], grace=grace
    )
    return create_worker(
        connection, dsn, namespace, jobs, file, limits, options["concurrency"], options["paths"], is_continuous
    )


def send_heartbeats(outcomes: Mapping[str, Status], all_is_well: bool | None = None) -> None:
    """Send the heartbeats that the environment asks for: of jobs, and of a tick unless ``all_is_well`` is None."""
    if any(name.startswith("YAMLSCHED_HEARTBEAT_URL") for name in os.environ):
        from yamlsched.operations import heartbeat

        heartbeat.send(os.environ, all_is_well, {job: status == "succeeded" for job, status in outcomes.items()})


def configure_log(settings: Settings) -> None:
    log.configure(settings.verbosity, settings.log_format == "json")
