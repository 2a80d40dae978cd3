"""The file that a host presents, the poll that records it, and the result of a sync. See
``sql/files.sql``.

The tick that finds nothing imports this, so nothing here imports what reads schedules.yaml or cron,
and rows are named tuples: that tick would notice the time that it takes to create a dataclass.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import tzdata  # type: ignore[import-untyped]
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from yamlsched import __version__
from yamlsched.db.connection import escape_for
from yamlsched.db.query import load
from yamlsched.schedule import file

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.schedule.job import Job, Queue
    from yamlsched.sync.due import Changes, DueResult
    from yamlsched.sync.slot_plan import Gap


Row = TypeVar("Row", bound=NamedTuple)


class Snapshot(NamedTuple):
    """What one poll of the database returns. Without a namespace the file is unknown, and all the
    rest is null.

    ``other_namespace`` is that for which this host presented the path before, if an option switches
    it now.
    """

    checksums: dict[str, str]  # of the files of the migrations, by version
    now: datetime
    namespace: str | None
    in_force_hash: str | None
    in_force_environment: str | None
    in_force_yamlsched: str | None
    in_force_tzdata: str | None
    has_due_jobs: bool
    has_claimable_runs: bool
    needs_housekeeping: bool
    other_namespace: str | None
    # targets with a message that may be sent now; None: no targets
    messages_due: list[str | None] | None
    is_hidden: bool = False  # policies hide rows of the tables
    # a job is under a limit whose number is lost: only the file knows it
    has_lost_limits: bool = False


class FileState(NamedTuple):
    """How a file stands among those that are presented in its namespace.

    ``applied_at`` is when the file itself was last applied; ``newer_presented_at`` when a file that
    was applied after it was last presented, and ``is_newer_presented`` whether one still is.
    ``other_namespace`` is as in Snapshot; ``overrides_namespace``: ``namespace`` is not the file's
    own.
    """

    now: datetime
    applied_at: datetime | None
    presented_since_at: datetime
    in_force_id: int | None
    in_force_hash: str | None
    in_force_environment: str | None
    in_force_host: str | None
    in_force_path: str | None
    in_force_since: datetime | None
    in_force_yamlsched: str | None
    in_force_tzdata: str | None
    newer_presented_at: datetime | None
    is_newer_presented: bool
    namespace: str = "default"
    overrides_namespace: bool = False
    other_namespace: str | None = None


class TimeZoneData(NamedTuple):
    """The versions with which the next slots were computed, and of the hosts that
    present a file.
    """

    in_force: str | None
    presented: list[str]


def _one(
    connection: Connection[Any], row_class: type[Row], statement: str, parameters: dict[str, Any]
) -> Row:
    with connection.cursor(row_factory=class_row(row_class)) as cursor:
        [row] = cursor.execute(load("files")[statement], parameters).fetchall()
    return row


def poll_rows(
    connection: Connection[Any],
    presented: dict[str, Any],
    now: datetime | None,
    namespace: str | None = None,
) -> Snapshot:
    """Record which file is presented, and return what there is to do: one round trip.

    ``namespace`` is that of a file that was read; of another one, what is stored is known.
    """
    presented = _storable(connection, presented)
    return _one(connection, Snapshot, "poll", {**presented, "now": now, "namespace": namespace})


def _storable(connection: Connection[Any], presented: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with a path and a host name that the database can store, whatever its
    encoding is.
    """
    return presented | {name: escape_for(connection, presented[name]) for name in ("host", "path")}


def state(
    connection: Connection[Any], namespace: str, presented: dict[str, Any], now: datetime | None
) -> FileState:
    """Return what decides whether the file is applied."""
    presented = _storable(connection, presented)
    return _one(connection, FileState, "state", {**presented, "namespace": namespace, "now": now})


def tzdata_in_use(
    connection: Connection[Any], namespace: str, now: datetime | None
) -> TimeZoneData:
    """Return which time zone data is in use."""
    return _one(connection, TimeZoneData, "tzdata_in_use", {"namespace": namespace, "now": now})


def environment_in_force(connection: Connection[Any], namespace: str) -> str:
    """Return the environment of the file in force; empty without one."""
    [row] = connection.execute(
        load("files")["environment_in_force"], {"namespace": namespace}
    ).fetchall()
    return str(row.environment)


def lock_namespace(
    connection: Connection[Any], namespace: str, lock_timeout_seconds: float
) -> None:
    """Lock the namespace until the transaction ends: only one session at a time applies a file to
    it.

    Raises LockNotAvailable if this or a later statement of the transaction waits longer than the
    timeout for a lock.
    """
    connection.execute(
        load("files")["set_lock_timeout"], {"timeout": f"{lock_timeout_seconds * 1000:.0f}ms"}
    )
    for statement in ("register", "lock_namespace"):
        connection.execute(load("files")[statement], {"namespace": namespace})


def keep_presenting(
    connection: Connection[Any],
    presented: dict[str, Any],
    now: datetime | None,
    mistakes: int | None = None,
    namespace: str | None = None,
    errors: Sequence[str] = (),
) -> str | None:
    """Present again the file that this host and path presented last, and return its namespace.

    ``mistakes`` is the number of errors for which the file that is there now is refused, ``errors``
    are the first ones. ``namespace`` is that of the file, if it can be read: it identifies the path
    of a host with a new name.
    """
    lines = [escape_for(connection, error) for error in errors]
    parameters = {
        **_storable(connection, presented),
        "now": now,
        "mistakes": mistakes,
        "errors": lines,
    }
    parameters["namespace"] = namespace
    row = connection.execute(load("files")["keep_presenting"], parameters).fetchone()
    return row.namespace if row else None


def mark_applied(
    connection: Connection[Any],
    namespace: str,
    presented: dict[str, Any],
    retention: dict[str, str],
    now: datetime,
) -> None:
    """Record that the file is in force from ``now`` on."""
    place = _storable(connection, presented)
    parameters = {**place, "namespace": namespace, "retention": Jsonb(retention), "now": now}
    connection.execute(load("files")["mark_applied"], parameters)


def mark_renewed(
    connection: Connection[Any], id: int, yamlsched_version: str, tzdata_version: str
) -> None:
    """Record that the file in force was applied again by these versions."""
    parameters = {
        "id": id,
        "yamlsched_version": yamlsched_version,
        "tzdata_version": tzdata_version,
    }
    connection.execute(load("files")["mark_renewed"], parameters)


def prune_unapplied(connection: Connection[Any], namespace: str, now: datetime | None) -> int:
    """Delete files that were presented long ago and never applied, and return how many."""
    return connection.execute(
        load("files")["prune_unapplied"], {"namespace": namespace, "now": now}
    ).rowcount


class FileVersion(NamedTuple):
    """The file that is presented, and by which versions."""

    hash: str
    environment: str
    yamlsched_version: str
    tzdata_version: str

    def is_covered_by(self, yamlsched_version: str | None, tzdata_version: str | None) -> bool:
        """Return whether what was applied with these versions needs no second look
        with this one's.
        """
        is_yamlsched_older = is_older(yamlsched_version, self.yamlsched_version)
        return not is_yamlsched_older and not is_older(tzdata_version, self.tzdata_version)


def is_older(version: str | None, other: str) -> bool:
    """Return whether a version of yamlsched, or of time zone data, is older than another.

    >>> is_older("1.9.0", "1.10.0"), is_older("2025b", "2026a"), is_older("1.0rc1", "1.0"), is_older("1.0", "1.0")
    (True, True, True, False)
    """
    return _version_key(version or "") < _version_key(other)


def _version_key(version: str) -> list[tuple[int, int | str]]:
    """Return a sort key: letters sort before the end of a version (1.0rc1), numbers after it."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower())
    return [(2, int(part)) if part.isdigit() else (0, part) for part in parts] + [(1, 0)]


def newest_version(*versions: str | None) -> str:
    """Return the newest of versions."""
    return max((version for version in versions if version), key=_version_key)


class Verdict(StrEnum):
    """What to do with a valid file."""

    CURRENT = "current"  # it is in force
    RENEW = "renew"  # it is in force, applied by an older yamlsched or with older time zone data
    APPLY = "apply"
    HELD_BACK = "held_back"  # it was applied before, and what superseded it is still presented
    OTHER_ENVIRONMENT = "other_environment"
    OTHER_NAMESPACE = (  # this host presented the path for another one, and an option switches it
        "other_namespace"
    )


REFUSED = (Verdict.OTHER_ENVIRONMENT, Verdict.OTHER_NAMESPACE)
"""Nothing is scheduled or run on a host with such a file."""


def as_namespace(name: str) -> str | None:
    """Return ``name``, such as that of a host, as a namespace; None if that is not possible.

    >>> as_namespace("Web-1.example.com"), as_namespace("1st")
    ('web_1_example_com', None)
    """
    namespace = name.lower().replace(".", "_").replace("-", "_")
    return namespace if re.fullmatch("[a-z][a-z0-9_]{0,62}", namespace) else None


@dataclass(frozen=True)
class ScheduleFile:
    """A schedules.yaml as a host presents it. ``environment`` is empty if none is set.

    ``handler_path`` are folders, in addition to the file's, for checking handlers before the file
    is applied; None: they are not checked. ``by_hand``: an operator presents it once, not a tick
    each minute. ``namespace_override`` replaces the namespace of the file. ``names_environment``:
    --env or YAMLSCHED_ENV is set, possibly to none. ``path`` is its place, with links.
    ``real_path`` is where they led when it was read, and ``folders`` are those of --path then: what
    is looked up there is of the same release. ``queues`` are those that this host serves; None: all
    that are not dedicated.
    """

    data: bytes = field(repr=False)
    path: str
    environment: str = ""
    host: str = field(default_factory=socket.gethostname)
    handler_path: tuple[str, ...] | None = None
    by_hand: bool = False
    namespace_override: str | None = None
    names_environment: bool = True
    real_path: str = ""
    folders: tuple[str, ...] = ()
    queues: tuple[str, ...] | None = None

    @classmethod
    def read(
        cls,
        path: Path,
        environment: str | None,
        handler_path: tuple[str, ...] | None = (),
        namespace_override: str | None = None,
    ) -> ScheduleFile:
        """Read the file. Raises EnvironmentFailed if it cannot be read."""
        place, real_path = file.absolute(path), ""
        while real_path != os.path.realpath(place):  # a link may be switched meanwhile
            real_path = os.path.realpath(place)
            data = file.read(path, "; name the schedule with --file or YAMLSCHED_FILE")
        return cls(
            data,
            str(place),
            environment or "",
            handler_path=handler_path,
            namespace_override=namespace_override,
            names_environment=environment is not None,
            real_path=real_path,
        )

    @property
    def real_file(self) -> Path:
        """The file without links. Handlers, and all else that belongs to it, are looked up in its
        directory.
        """
        return Path(self.real_path or self.path)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def version(self) -> FileVersion:
        return FileVersion(self.sha256, self.environment, __version__, tzdata.IANA_VERSION)

    def serves(self, name: str, queue: Queue) -> bool:
        """Return whether this host executes the runs of a queue."""
        return not queue.dedicated if self.queues is None else name in self.queues

    def served(self, queues: Mapping[str, Queue]) -> frozenset[str]:
        """Return which ``queues`` of the file this host serves."""
        return frozenset(name for name, queue in queues.items() if self.serves(name, queue))

    @property
    def may_move(self) -> bool:
        """Whether an operator may move this host to the namespace: not by forgetting
        --namespace.
        """
        return self.by_hand and self.namespace_override is not None

    def presented(self) -> dict[str, Any]:
        """Return the parameters of the statements on files."""
        place = {
            "host": self.host,
            "path": self.path,
            "namespace_override": self.namespace_override,
        }
        how = {"by_hand": self.by_hand, "moves": self.may_move}
        return {**self.version._asdict(), **place, **how}


@dataclass
class SyncResult:
    """What a sync did and found.

    ``jobs`` are those whose own entry in this host's file is valid, if the file had to be read;
    ``is_readable`` is false if it could not be parsed. ``is_validated``: this version of yamlsched
    has applied the file, with the same time zone data, so it needs no second check. ``queues`` are
    the names of those of the file, if it had to be read.
    """

    namespace: str | None
    verdict: Verdict | None = None
    changes: Changes | None = None
    due: DueResult | None = None
    messages: list[str] = field(default_factory=list)
    has_findings: bool = False
    jobs: dict[str, Job] | None = None
    queues: frozenset[str] | None = None
    is_readable: bool = True
    is_validated: bool = False

    @property
    def may_claim(self) -> bool:
        """Return whether this host may create and claim runs: not those of another environment or
        namespace.
        """
        return self.namespace is not None and self.verdict not in REFUSED

    def add_findings(self, *messages: str) -> None:
        """Add messages about what needs attention."""
        self.messages += messages
        self.has_findings |= bool(messages)

    @property
    def runs(self) -> int:
        """How many runs were created: owed ones of changed jobs, and due ones."""
        return (self.due.runs if self.due else 0) + (self.changes.owed.runs if self.changes else 0)

    @property
    def gaps(self) -> list[Gap]:
        """The slots that were recorded as skipped."""
        return (self.changes.owed.gaps if self.changes else []) + (
            self.due.gaps if self.due else []
        )

    @property
    def skipped(self) -> set[str]:
        """The jobs with slots that a calendar skips."""
        return {gap.job_type for gap in self.gaps if gap.reason == "calendar"}


def poll(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None = None
) -> Snapshot:
    """Record that this host presents this file, and return what there is to do. One round trip;
    autocommit.
    """
    return poll_rows(connection, schedule.presented(), now)


def is_current(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Return whether the file is in force and needs no reading."""
    version = schedule.version
    is_same = (snapshot.in_force_hash, snapshot.in_force_environment) == (
        version.hash,
        version.environment,
    )
    is_switched = snapshot.other_namespace is not None and not schedule.may_move
    if not is_same or is_switched or snapshot.has_lost_limits:
        return False
    return version.is_covered_by(snapshot.in_force_yamlsched, snapshot.in_force_tzdata)


def current(snapshot: Snapshot, schedule: ScheduleFile) -> SyncResult | None:
    """Return the result for a file that is in force, None for any other."""
    if not is_current(snapshot, schedule):
        return None
    applied_by = snapshot.in_force_yamlsched, snapshot.in_force_tzdata
    is_validated = applied_by == (__version__, schedule.version.tzdata_version)
    return SyncResult(snapshot.namespace, Verdict.CURRENT, is_validated=is_validated)


def needs_sync(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Return whether there is anything to sync."""
    has_older_tzdata = is_older(schedule.version.tzdata_version, snapshot.in_force_tzdata or "")
    return snapshot.has_due_jobs or has_older_tzdata or not is_current(snapshot, schedule)
