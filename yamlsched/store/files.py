"""Statements on schedule_files: see ``sql/files.sql``.

What they answer with are named tuples: an idle tick would notice the time that it takes to make a dataclass.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from yamlsched.store.statements import load

if TYPE_CHECKING:
    from psycopg import Connection


class Snapshot(NamedTuple):
    """What one look at the database says. Without a namespace the file is unknown, and nothing else is answered."""

    version: int
    now: datetime
    namespace: str | None
    in_force_hash: str | None
    in_force_environment: str | None
    in_force_yamlsched: str | None
    in_force_tzdata: str | None
    has_due_jobs: bool
    has_claimable_runs: bool
    needs_housekeeping: bool


class FileState(NamedTuple):
    """Where a file stands among those that are presented in its namespace.

    ``applied_at`` is when it was applied last itself; ``newer_presented_at`` when one that was applied after it was
    presented last, and ``is_newer_presented`` whether one still is.
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


class TimeZoneData(NamedTuple):
    """The versions with which the next slots were computed, and of the hosts that present a file."""

    in_force: str | None
    presented: list[str]


def poll(connection: Connection[Any], presented: dict[str, Any], now: datetime | None) -> Snapshot:
    """Say which file is presented, and return what there is to do: one round trip."""
    with connection.cursor(row_factory=class_row(Snapshot)) as cursor:
        cursor.execute(load("files")["poll"], {**presented, "now": now})
        row = cursor.fetchone()
    assert row is not None
    return row


def lock_namespace(connection: Connection[Any], namespace: str, wait: timedelta) -> None:
    """Wait until nobody else applies a file to the namespace, and keep others waiting until the transaction ends.

    No lock is waited for longer than ``wait``, this one or a later one of the transaction: then LockNotAvailable is
    raised.
    """
    set_lock_timeout(connection, wait)
    for name in ("register", "lock_namespace"):
        connection.execute(load("files")[name], {"namespace": namespace})


def set_lock_timeout(connection: Connection[Any], wait: timedelta) -> None:
    """Let statements of this transaction fail that wait longer than this for a lock."""
    connection.execute(load("files")["set_lock_timeout"], {"wait": f"{wait / timedelta(milliseconds=1):.0f}ms"})


def present(connection: Connection[Any], namespace: str, presented: dict[str, Any], now: datetime | None) -> None:
    """Record that a sound file is presented."""
    connection.execute(load("files")["present"], {**presented, "namespace": namespace, "now": now})


def keep_presenting(
    connection: Connection[Any],
    presented: dict[str, Any],
    now: datetime | None,
    mistakes: int | None = None,
    namespace: str | None = None,
) -> str | None:
    """Let the file that this host and path presented last be presented still; return its namespace.

    ``mistakes`` are those for which the file that lies there now is refused, for monitors to see. ``namespace`` is
    what that file says it is, if it can be read: a new host is then known by its path.
    """
    given = {**presented, "now": now, "mistakes": mistakes, "namespace": namespace}
    row = connection.execute(load("files")["keep_presenting"], given).fetchone()
    return row.namespace if row else None


def state(connection: Connection[Any], namespace: str, presented: dict[str, Any], now: datetime | None) -> FileState:
    """Return what decides whether the file is applied."""
    with connection.cursor(row_factory=class_row(FileState)) as cursor:
        cursor.execute(load("files")["state"], {**presented, "namespace": namespace, "now": now})
        row = cursor.fetchone()
    assert row is not None
    return row


def mark_applied(
    connection: Connection[Any], namespace: str, presented: dict[str, Any], retention: dict[str, str], now: datetime
) -> None:
    """Record that the file is in force from now on."""
    given = {**presented, "namespace": namespace, "retention": Jsonb(retention), "now": now}
    connection.execute(load("files")["mark_applied"], given)


def mark_renewed(connection: Connection[Any], id: int, yamlsched_version: str, tzdata_version: str) -> None:
    """Record that the file in force was applied again by these versions."""
    given = {"id": id, "yamlsched_version": yamlsched_version, "tzdata_version": tzdata_version}
    connection.execute(load("files")["mark_renewed"], given)


def tzdata_in_use(connection: Connection[Any], namespace: str, now: datetime | None) -> TimeZoneData:
    """Return which time zone data is in use."""
    with connection.cursor(row_factory=class_row(TimeZoneData)) as cursor:
        cursor.execute(load("files")["tzdata_in_use"], {"namespace": namespace, "now": now})
        row = cursor.fetchone()
    assert row is not None
    return row


def prune_unapplied(connection: Connection[Any], namespace: str, now: datetime | None) -> int:
    """Forget files that were presented long ago and never applied."""
    return connection.execute(load("files")["prune_unapplied"], {"namespace": namespace, "now": now}).rowcount
