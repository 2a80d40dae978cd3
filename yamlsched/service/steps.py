"""What the flows share: the target, the limits, and their steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg

from yamlsched import db, log, plugin_manager
from yamlsched.act import notes, prune
from yamlsched.db.connection import SESSION_SETTINGS, reason
from yamlsched.db.query import Connection
from yamlsched.errors import EnvironmentFailed, Refused, YamlschedError
from yamlsched.schedule import include
from yamlsched.schedule.file import absolute
from yamlsched.schedule.job import NotifyTarget
from yamlsched.schedule.load import load
from yamlsched.sync.apply import FileApplication
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.flow import sync
from yamlsched.sync.hosts import Snapshot, current, namespace_of_refused, needs_sync, poll
from yamlsched.worker.attempt import WorkerLimits

MAX_HOUSEKEEPING_SECONDS = 5.0
HOUSEKEEPING_SESSION = {**SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "1s"}
"""Housekeeping waits for no lock: the next one, minutes later, does what this one could not."""

OnMessages = Callable[[Sequence[str]], None]
"""Gets the messages of a flow as soon as there are any: working takes minutes, and a loop does not
end.
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A schedule and its database.

    ``database`` yields a DSN that can be used as long as the context lasts. ``namespace`` replaces
    that of the file. ``handler_folders`` are folders to import handlers from, in addition to the
    file's own. ``queues`` are those that are served; None: all that are not dedicated.
    ``may_migrate``: create or upgrade the tables where that is needed.
    """

    file: Path
    database: Callable[[], AbstractContextManager[str]]
    environment: str | None = None
    namespace: str | None = None
    handler_folders: tuple[str, ...] = ()
    queues: tuple[str, ...] | None = None
    may_migrate: bool = False

    def read_file(self) -> ScheduleFile:
        """Return the file as this place has it. Raises EnvironmentFailed if it cannot be read."""
        folders = tuple(map(os.path.realpath, self.handler_folders))
        schedule = ScheduleFile.read(
            self.file, self.environment, folders, self.namespace, find_patterns=include.patterns
        )
        return replace(schedule, folders=folders, queues=self.queues)

    def unreadable_file(self) -> ScheduleFile:
        """Return the file of this place if it cannot be read."""
        path = str(absolute(self.file))
        return ScheduleFile(
            b"",
            path,
            self.environment or "",
            namespace_override=self.namespace,
            queues=self.queues,
        )


@dataclass(frozen=True, kw_only=True)
class WorkOptions(WorkerLimits):
    """What one worker may do. None: the default concurrency, else no limit.

    A ``worker`` with an id was started for its queues by somebody: it shares no concurrency limit
    with its host, and does not sync.
    """

    concurrency: int | None = None
    worker: str | None = None


@dataclass
class WorkResult:
    """What a tick, a ``work`` or a loop did.

    ``skipped`` are jobs with slots that a calendar skips.
    """

    messages: list[str] = field(default_factory=list)
    has_findings: bool = False
    namespace: str | None = None  # of a tick, once it is known
    skipped: set[str] = field(default_factory=set)

    def add(self, result: SyncResult) -> Sequence[str]:
        """Add what a sync found, and return its messages."""
        messages = list(result.messages)
        if not result.is_readable:
            messages.append(
                "no job of this file can run until it is fixed: its handlers and commands are"
                " unknown"
            )
        self.messages += messages
        self.has_findings |= result.has_findings
        self.skipped |= result.skipped
        return messages


def poll_database(connection: Connection, schedule: ScheduleFile, may_migrate: bool) -> Snapshot:
    """Poll the database, and first bring its tables up to date where that is needed.

    Raises EnvironmentFailed where the tables are not those of this version.
    """
    db.migrations.ensure_usable(connection, apply=may_migrate)
    return poll(connection, schedule)


def sync_if_needed(
    connection: Connection, schedule: ScheduleFile, snapshot: Snapshot
) -> SyncResult:
    """Sync if ``snapshot`` shows anything to sync."""
    known = None if needs_sync(snapshot, schedule) else current(snapshot, schedule)
    return known or sync(connection, schedule, snapshot=snapshot)


def inspect(connection: Connection, schedule: ScheduleFile, snapshot: Snapshot) -> SyncResult:
    """Return how the file stands, without a sync. Raises Refused if it was never applied."""
    result = current(snapshot, schedule) or SyncResult(snapshot.namespace)
    if result.verdict is None:
        FileApplication(connection, schedule, result, snapshot).inspect()
    if result.namespace is None:
        raise Refused(
            f'{schedule.path} has not been applied to this database yet: run "yamlsched sync" first'
        )
    return result


def note_unreadable(target: Target, error: EnvironmentFailed) -> None:
    """Note that the file cannot be read, if the database can be reached: this place keeps the one
    that it had.
    """
    schedule = target.unreadable_file()
    errors = suppress(psycopg.Error, YamlschedError)
    with errors, target.database() as dsn, db.connect(dsn) as connection:
        namespace = namespace_of_refused(connection, schedule)
        poll(connection, schedule, None, namespace, errors=[str(error)])


def housekeep(dsn: str, namespace: str, snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Prune a little if it is time to, and return False if that failed. A failure stops nothing
    else.
    """
    if not snapshot.needs_housekeeping:
        return True
    try:
        with db.connect(dsn, HOUSEKEEPING_SESSION) as connection:
            archive = None
            if prune.is_archived(connection, namespace):
                archive = prune.own_archive(schedule.data, schedule.real_file, namespace)
                if archive is None:
                    # the file in use archives, and this host's does not say where: others will
                    # prune
                    return True
            try:
                prune.housekeep(connection, namespace, MAX_HOUSEKEEPING_SECONDS, archive=archive)
            except prune.ArchiveFailed as error:
                prune.record_failure(connection, namespace, error)
                raise
    except (psycopg.Error, YamlschedError) as error:
        log.warning("housekeeping.failed", error=failure(error))
        return False
    return True


def notify(
    dsn: str, schedule: ScheduleFile, snapshot: Snapshot, synced: SyncResult, sends: bool = True
) -> None:
    """Bring up to date what is to be sent to targets of notifications, and send it where this host
    can; nothing if neither the file nor the database has targets.

    Where to send is what this host's file says.
    """
    if snapshot.messages_due is None and b"notify" not in schedule.data:
        return
    namespace = str(synced.namespace)
    try:
        with db.connect(dsn, HOUSEKEEPING_SESSION) as connection:
            due = notes.settle(connection, namespace)
    except (psycopg.Error, YamlschedError) as error:
        log.warning("notify.failed", error=failure(error))
        return
    targets = file_targets(schedule, synced)
    variables = {
        name: target.url_env for name, target in targets.items() if os.environ.get(target.url_env)
    }
    if sends and not variables.keys().isdisjoint(due):
        plugin_manager.answers("messages_due", dsn=dsn, namespace=namespace, variables=variables)


def file_targets(schedule: ScheduleFile, synced: SyncResult) -> Mapping[str, NotifyTarget]:
    """Return the targets of notifications that the file has."""
    if synced.jobs:
        return dict(next(iter(synced.jobs.values())).targets)
    return load(schedule.data, schedule.path, schedule.environment or None).notify


def failure(error: Exception) -> str:
    """Return the reason of an error, without the connection string."""
    return reason(error) if isinstance(error, psycopg.Error) else str(error)
