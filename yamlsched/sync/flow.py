"""Bring the database to the file that a place has, and account for due slots. See
docs/catchup.md.
"""

from __future__ import annotations

import time
from datetime import datetime

import psycopg

from yamlsched.db.connection import reason
from yamlsched.db.query import Connection
from yamlsched.errors import Refused
from yamlsched.sync import due, hosts
from yamlsched.sync.apply import FileApplication
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.hosts import Snapshot
from yamlsched.sync.in_use import APPLIED, FileVersion, is_older

MAX_SYNC_SECONDS = 25.0
"""After this a sync leaves due slots to the next tick."""


def sync(
    connection: Connection,
    schedule: ScheduleFile,
    now: datetime | None = None,
    snapshot: Snapshot | None = None,
) -> SyncResult:
    """Apply the file if it is to be in use, and account for due slots.

    ``snapshot`` is that of the caller's poll; without it, the database is polled. A file with
    errors, or one that cannot be applied now, changes nothing; due slots are still accounted for,
    except on a host of another environment or namespace.
    """
    deadline = time.monotonic() + MAX_SYNC_SECONDS
    snapshot = snapshot or hosts.poll(connection, schedule, now)
    result = hosts.current(snapshot, schedule)
    if result is None:
        result = SyncResult(snapshot.namespace)
        application = FileApplication(connection, schedule, result, snapshot, now)
        try:
            application.apply_if_due()
        except (psycopg.Error, Refused) as error:
            if connection.closed or (
                schedule.is_manual and not isinstance(error, psycopg.errors.LockNotAvailable)
            ):
                raise
            application.report_failure(error)
        snapshot = application.snapshot
    if schedule.is_manual and result.verdict in APPLIED:
        result.messages += hosts.leave(connection, schedule, str(result.namespace))
    if result.may_claim:
        account_for_due_slots(connection, result, snapshot, schedule.version, now, deadline)
    return result


def account_for_due_slots(
    connection: Connection,
    result: SyncResult,
    snapshot: Snapshot,
    version: FileVersion,
    now: datetime | None = None,
    deadline: float | None = None,
) -> None:
    """Account for the due slots of the namespace, unless a place with newer time zone data does.

    Two versions of the data may place one slot at two instants, and would create two runs.
    ``deadline`` is a time of the monotonic clock.
    """
    assert result.namespace is not None
    deadline = deadline or time.monotonic() + MAX_SYNC_SECONDS
    if hosts.has_newer_tzdata(snapshot, version):
        return
    if is_older(version.tzdata_version, snapshot.in_use_tzdata or ""):
        result.add_findings(
            f"this host has time zone data {version.tzdata_version}, and the slots were computed"
            f" with {snapshot.in_use_tzdata}. No host with that data ticks any more, so slots are"
            " computed with the older data. Upgrade tzdata on this host"
        )
    result.due = due.DueResult()
    try:
        result.due = due.account_for_due_slots(connection, result.namespace, now, deadline)
        result.due.add(due.release_runs(connection, result.namespace, now))
    except psycopg.Error as error:
        if connection.closed:
            raise
        result.add_findings(
            f"due slots could not be processed: {reason(error)}. The next tick tries again"
        )
    due.note_failures(connection, result.namespace, result.due.failed, now)
    result.add_findings(*result.due.problems)
