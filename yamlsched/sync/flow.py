"""Bring the database to the file that a host presents, and account for due slots. See
docs/catchup.md.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import psycopg
from psycopg import Connection

from yamlsched.db.connection import reason
from yamlsched.errors import Refused
from yamlsched.sync import due, files, in_force
from yamlsched.sync.apply import FileSync
from yamlsched.sync.files import ScheduleFile, Snapshot, SyncResult, current, is_older, poll

MAX_SYNC_SECONDS = 25.0
"""After this a sync leaves due slots to the next tick."""


def sync(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None = None,
    at_once: bool = False,
    snapshot: Snapshot | None = None,
) -> SyncResult:
    """Apply the file if it is to be in force, and account for due slots.

    ``at_once`` applies a file that would be held back, and changes the environment of a namespace.
    ``snapshot`` is that of the caller's poll; without it, the database is polled. A file with
    errors, or one that cannot be applied now, changes nothing; due slots are still accounted for,
    except on a host of another environment.
    """
    deadline = time.monotonic() + MAX_SYNC_SECONDS
    snapshot = snapshot or poll(connection, schedule, now)
    known = current(snapshot, schedule)
    result = known or SyncResult(snapshot.namespace)
    result.messages += in_force.move_messages(schedule, snapshot)
    if known is None:
        file_sync = FileSync(connection, schedule, result, now, at_once)
        try:
            file_sync.apply_if_due()
        except (psycopg.Error, Refused) as error:
            if connection.closed or (
                at_once and not isinstance(error, psycopg.errors.LockNotAvailable)
            ):
                raise
            file_sync.report_failure(error)
    if result.may_claim:
        account_for_due_slots(connection, result, schedule.version.tzdata_version, now, deadline)
    return result


def account_for_due_slots(
    connection: Connection[Any],
    result: SyncResult,
    tzdata_version: str,
    now: datetime | None,
    deadline: float,
) -> None:
    """Account for the due slots of the namespace, unless a host with newer time zone data does.

    Two versions of the data may place one slot at two instants, and would create two runs.
    ``deadline`` is a time of the monotonic clock.
    """
    assert result.namespace is not None
    known = files.tzdata_in_use(connection, result.namespace, now)
    if any(is_older(tzdata_version, other) for other in known.presented):
        return
    if is_older(tzdata_version, known.in_force or ""):
        result.add_findings(
            f"this host has time zone data {tzdata_version}, and the slots were computed with"
            f" {known.in_force}. No host with that data ticks any more, so slots are computed with"
            " the older data. Upgrade tzdata on this host"
        )
    try:
        result.due = due.account_for_due_slots(connection, result.namespace, now, deadline)
    except psycopg.Error as error:
        if connection.closed:
            raise
        result.due = due.DueResult()
        result.add_findings(
            f"due slots could not be read: {reason(error)}. The next tick tries again"
        )
    try:
        waiting = due.DueResult(blocked=due.release_runs(connection, result.namespace, now))
    except psycopg.Error as error:
        if connection.closed:
            raise
        result.add_findings(
            f"waiting runs could not be released: {reason(error)}. The next tick tries again"
        )
    else:
        waiting.log()
        result.due.add(waiting)
    due.note_failures(connection, result.namespace, result.due.failed, now)
    result.add_findings(*result.due.problems)
