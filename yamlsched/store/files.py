"""Statements on schedule_files: see ``sql/files.sql``.

Rows are named tuples: an idle tick would notice the time that it takes to create a dataclass.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection

Row = TypeVar("Row", bound=NamedTuple)


class Snapshot(NamedTuple):
    """What one poll of the database returns. Without a namespace the file is unknown, and all the rest is null.

    ``other_namespace`` is that for which this host presented the path before, if an option switches it now.
    """

    version: int  # of the tables
    oldest_supported: int
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


class FileState(NamedTuple):
    """How a file stands among those that are presented in its namespace.

    ``applied_at`` is when the file itself was last applied; ``newer_presented_at`` when a file that was applied after
    it was last presented, and ``is_newer_presented`` whether one still is. ``other_namespace`` is as in Snapshot;
    ``overrides_namespace``: ``namespace`` is not the file's own.
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
    """The versions with which the next slots were computed, and of the hosts that present a file."""

    in_force: str | None
    presented: list[str]


def _one(connection: Connection[Any], row_class: type[Row], statement: str, given: dict[str, Any]) -> Row:
    with connection.cursor(row_factory=class_row(row_class)) as cursor:
        [row] = cursor.execute(load("files")[statement], given).fetchall()
    return row


def poll(
    connection: Connection[Any], presented: dict[str, Any], now: datetime | None, namespace: str | None = None
) -> Snapshot:
    """Record which file is presented, and return what there is to do: one round trip.

    ``namespace`` is that of a file that was read; of another one, what is stored is known.
    """
    return _one(connection, Snapshot, "poll", {**presented, "now": now, "namespace": namespace})


def state(connection: Connection[Any], namespace: str, presented: dict[str, Any], now: datetime | None) -> FileState:
    """Return what decides whether the file is applied."""
    return _one(connection, FileState, "state", {**presented, "namespace": namespace, "now": now})


def tzdata_in_use(connection: Connection[Any], namespace: str, now: datetime | None) -> TimeZoneData:
    """Return which time zone data is in use."""
    return _one(connection, TimeZoneData, "tzdata_in_use", {"namespace": namespace, "now": now})


def environment_in_force(connection: Connection[Any], namespace: str) -> str:
    """Return the environment of the file in force; empty without one."""
    [row] = connection.execute(load("files")["environment_in_force"], {"namespace": namespace}).fetchall()
    return str(row.environment)


def lock_namespace(connection: Connection[Any], namespace: str, lock_timeout_seconds: float) -> None:
    """Lock the namespace until the transaction ends: only one session at a time applies a file to it.

    Raises LockNotAvailable if this or a later statement of the transaction waits longer than the timeout for a lock.
    """
    connection.execute(load("files")["set_lock_timeout"], {"timeout": f"{lock_timeout_seconds * 1000:.0f}ms"})
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

    ``mistakes`` is the number of errors for which the file that is there now is refused, ``errors`` are the first ones.
    ``namespace`` is that of the file, if it can be read: it identifies the path of a host with a new name.
    """
    given = {**presented, "now": now, "mistakes": mistakes, "namespace": namespace, "errors": list(errors)}
    row = connection.execute(load("files")["keep_presenting"], given).fetchone()
    return row.namespace if row else None


def mark_applied(
    connection: Connection[Any],
    namespace: str,
    presented: dict[str, Any],
    retention: dict[str, str],
    now: datetime,
) -> None:
    """Record that the file is in force from ``now`` on."""
    given = {**presented, "namespace": namespace, "retention": Jsonb(retention), "now": now}
    connection.execute(load("files")["mark_applied"], given)


def mark_renewed(connection: Connection[Any], id: int, yamlsched_version: str, tzdata_version: str) -> None:
    """Record that the file in force was applied again by these versions."""
    given = {"id": id, "yamlsched_version": yamlsched_version, "tzdata_version": tzdata_version}
    connection.execute(load("files")["mark_renewed"], given)


def prune_unapplied(connection: Connection[Any], namespace: str, now: datetime | None) -> int:
    """Delete files that were presented long ago and never applied, and return how many."""
    return connection.execute(load("files")["prune_unapplied"], {"namespace": namespace, "now": now}).rowcount
