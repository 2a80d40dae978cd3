"""What a place has, what is in use, and what there is to do: see ``sql/hosts.sql``.

This is all that an idle tick needs, so nothing here imports what reads schedules.yaml or cron, and
rows are named tuples: an idle tick would notice the time that it takes to create a dataclass.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.types.json import Jsonb

from yamlsched.db.query import Connection, execute, fetch, fetch_column
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.in_use import FileVersion, Verdict, decide, is_older

if TYPE_CHECKING:
    from yamlsched.schedule.job import Queue

MAX_STORED_ERRORS = 20
"""Errors of a refused file that are stored."""
MAX_STORED_CHARS = 1_000
"""Of each."""


class Snapshot(NamedTuple):
    """What one poll of the database returns. Without a namespace the file was never read, and all
    the rest is null.

    ``others`` are the files, and ``other_tzdata`` the time zone data, of the other places that
    count. ``had_file``: the place had the file at its tick before, and ``has_file_since`` is when
    it, or the place that it follows, got it. ``other_namespace`` is one that an option named for
    this place until now.
    """

    checksums: dict[str, str]  # of the files of the migrations, by version
    now: datetime
    namespace: str | None
    in_use_hash: str | None  # None: no file is in use, and all about it is null
    in_use_environment: str
    in_use_yamlsched: str
    in_use_tzdata: str
    in_use_host: str | None
    in_use_path: str | None
    in_use_since: datetime
    queues: list[str]  # of the file in use
    was_in_use: bool
    had_file: bool
    has_file_since: datetime
    others: list[str]
    other_tzdata: list[str]
    other_namespace: str | None
    has_due_jobs: bool
    has_claimable_runs: bool
    needs_housekeeping: bool
    # targets with a message that may be sent now; None: no targets
    messages_due: list[str | None] | None
    # a job is under a limit whose number is lost: only the file knows it
    has_lost_limits: bool = False

    @property
    def in_use(self) -> FileVersion | None:
        """The file in use, and the newest versions that applied it; None without one."""
        if self.in_use_hash is None:
            return None
        return FileVersion(
            self.in_use_hash, self.in_use_environment, self.in_use_yamlsched, self.in_use_tzdata
        )


def poll(
    connection: Connection,
    schedule: ScheduleFile,
    now: datetime | None = None,
    namespace: str | None = None,
    is_valid: bool = False,
    writes: bool = True,
    errors: Sequence[str] = (),
) -> Snapshot:
    """Write which file this place has, and return what there is to do: one round trip.

    ``namespace`` is that of a file that was read, and ``is_valid`` whether it has no errors;
    with ``errors`` it is refused. ``writes`` is false for what only looks.
    """
    [row] = fetch(
        connection,
        Snapshot,
        "hosts.poll",
        **place_parameters(schedule),
        namespace=namespace or schedule.namespace_override,
        is_valid=is_valid,
        writes=writes and schedule.syncs,
        queues=schedule.serves_now(),
        include=list(schedule.included.patterns),
        errors=[error[:MAX_STORED_CHARS] for error in errors[:MAX_STORED_ERRORS]] or None,
        now=now,
    )
    return row


def patterns(connection: Connection, schedule: ScheduleFile) -> list[str]:
    """Return the patterns of ``include`` that the file of this place had at its latest tick."""
    found = fetch_column(connection, "hosts.patterns", **place_parameters(schedule))
    return next(iter(found), [])


def place_parameters(schedule: ScheduleFile) -> dict[str, Any]:
    """Return the parameters of a place."""
    return {
        **schedule.version._asdict(),
        "host": schedule.host,
        "path": schedule.path,
        "is_named": schedule.namespace_override is not None,
        "by_hand": schedule.is_manual,
    }


def current(snapshot: Snapshot, schedule: ScheduleFile) -> SyncResult | None:
    """Return the result for a file that is in use and needs no reading, None for any other."""
    if snapshot.has_lost_limits or decide(snapshot, schedule) is not Verdict.CURRENT:
        return None
    queues = frozenset(snapshot.queues)
    return SyncResult(snapshot.namespace, Verdict.CURRENT, queues=queues)


def needs_sync(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Return whether there is anything to sync."""
    if snapshot.has_due_jobs or current(snapshot, schedule) is None:
        return True
    is_behind = is_older(schedule.version.tzdata_version, snapshot.in_use_tzdata or "")
    return is_behind and not has_newer_tzdata(snapshot, schedule.version)


def has_newer_tzdata(snapshot: Snapshot, version: FileVersion) -> bool:
    """Return whether another place that counts has newer time zone data: it computes the slots."""
    return any(is_older(version.tzdata_version, other) for other in snapshot.other_tzdata)


def lock_namespace(connection: Connection, namespace: str, lock_timeout_seconds: float) -> None:
    """Lock the namespace until the transaction ends: only one session at a time applies a file to
    it.

    Raises LockNotAvailable if this or a later statement of the transaction waits longer than the
    timeout for a lock.
    """
    execute(connection, "hosts.set_lock_timeout", timeout=f"{lock_timeout_seconds * 1000:.0f}ms")
    execute(connection, "hosts.lock_namespace", namespace=namespace)


def namespace_of_refused(
    connection: Connection, schedule: ScheduleFile, namespace: str | None = None
) -> str | None:
    """Return the namespace of a place whose file is not valid; None if nothing tells it.

    ``namespace`` is that of the file, None if it cannot be read.
    """
    known = fetch_column(
        connection, "hosts.namespace_of_refused", **place_parameters(schedule), namespace=namespace
    )
    return schedule.namespace_override or known[0]


def use(
    connection: Connection,
    schedule: ScheduleFile,
    namespace: str,
    retention: dict[str, str],
    queues: Mapping[str, Queue],
    commit: str | None,
    now: datetime,
) -> None:
    """Write that the file is in use from ``now`` on."""
    execute(
        connection,
        "hosts.use",
        **place_parameters(schedule),
        namespace=namespace,
        retention=Jsonb(retention),
        queues=Jsonb({name: _served_by(queue) for name, queue in queues.items()}),
        commit=commit,
        now=now,
    )


def _served_by(queue: Queue) -> str:
    if queue.start is not None:
        return "started"
    return "dedicated" if queue.dedicated else "open"


def renew(connection: Connection, namespace: str, version: FileVersion) -> None:
    """Write that the file in use was applied again by these versions."""
    execute(connection, "hosts.renew", **version._asdict(), namespace=namespace)


def leave(connection: Connection, schedule: ScheduleFile, namespace: str) -> list[str]:
    """Let a place whose namespace an operator has named leave the one that its file names; return
    what to report.
    """
    if schedule.namespace_override is None:
        return []
    return [
        f'{schedule.path} on this host now belongs to namespace "{namespace}" (was "{former}").'
        f" Add --namespace {shlex.quote(namespace)} to its crontab line; the jobs of"
        f' "{former}" are not retired'
        for former in fetch_column(
            connection, "hosts.leave", **place_parameters(schedule), namespace=namespace
        )
    ]


def environment_in_use(connection: Connection, namespace: str) -> str:
    """Return the environment of the file in use; empty without one."""
    file = execute(connection, "hosts.in_use", namespace=namespace).fetchone()
    return str(file.environment) if file else ""


def store_cannot_start(
    connection: Connection,
    namespace: str,
    schedule: ScheduleFile,
    jobs: Collection[str],
    reasons: Mapping[str, str],
    now: datetime | None = None,
) -> list[str]:
    """Store which of ``jobs`` this place cannot start, and why; return those that are new."""
    return fetch_column(
        connection,
        "hosts.store_cannot_start",
        **place_parameters(schedule),
        jobs=list(jobs),
        names=list(reasons),
        reasons=list(reasons.values()),
        namespace=namespace,
        now=now,
    )


def prune(connection: Connection, namespace: str, now: datetime | None) -> int:
    """Delete places that have stopped, and what was in use long ago; return how many places."""
    return execute(connection, "hosts.prune", namespace=namespace, now=now).rowcount
