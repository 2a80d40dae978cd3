"""Due slots in, rows of job_runs out: the first of the two stories.

``poll`` is all that an idle tick needs: one statement, and no import of what reads schedules.yaml or cron.
``sync`` decides which file is in force, applies it, and accounts for due slots. See docs/catchup.md.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import __version__
from yamlsched.errors import Refused
from yamlsched.store import files as store
from yamlsched.store.connection import reason
from yamlsched.store.files import Snapshot
from yamlsched.sync.model import ScheduleFile, SyncResult, Verdict, is_older

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.store.definitions import Definition
    from yamlsched.sync.due import DueResult

MAX_SYNC_SECONDS = 25.0
"""A sync that makes runs for longer leaves the rest to the next tick."""


def poll(connection: Connection[Any], schedule: ScheduleFile, now: datetime | None = None) -> Snapshot:
    """Say that this host presents this file, and return what there is to do. One round trip; autocommit."""
    return store.poll(connection, schedule.presented(), now)


def is_current(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Say whether the file is in force and needs no reading."""
    version = schedule.version
    is_same = (snapshot.in_force_hash, snapshot.in_force_environment) == (version.hash, version.environment)
    return is_same and version.is_covered_by(snapshot.in_force_yamlsched, snapshot.in_force_tzdata)


def current(snapshot: Snapshot, schedule: ScheduleFile) -> SyncResult | None:
    """Return what holds for a file that is in force, and None for any other."""
    if not is_current(snapshot, schedule):
        return None
    return SyncResult(snapshot.namespace, Verdict.CURRENT, is_validated=snapshot.in_force_yamlsched == __version__)


def sync(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None = None,
    at_once: bool = False,
    snapshot: Snapshot | None = None,
) -> SyncResult:
    """Bring the database to the file if it is to be in force, and account for due slots.

    ``at_once`` applies a file that would be held back, and changes the environment of a namespace. ``snapshot`` saves
    the look that the caller has had. A file with errors, or one that cannot be applied now, changes nothing; due slots
    are accounted for all the same, except on a host of another environment.
    """
    deadline = time.monotonic() + MAX_SYNC_SECONDS
    snapshot = snapshot or poll(connection, schedule, now)
    result = current(snapshot, schedule) or SyncResult(snapshot.namespace)
    if result.verdict is not Verdict.CURRENT:
        from yamlsched.sync import apply

        try:
            apply.read(connection, schedule, now, at_once, result)
        except (psycopg.Error, Refused) as error:
            if connection.closed or (at_once and not isinstance(error, psycopg.errors.LockNotAvailable)):
                raise
            apply.fail(connection, schedule, now, error, result)
    if result.may_claim:
        account_for_due_slots(connection, result, schedule.version.tzdata_version, now, deadline)
    return result


def needs_sync(snapshot: Snapshot, schedule: ScheduleFile) -> bool:
    """Return whether there is anything to sync."""
    is_behind = is_older(schedule.version.tzdata_version, snapshot.in_force_tzdata or "")
    return snapshot.has_due_jobs or is_behind or not is_current(snapshot, schedule)


def _leaves_slots(connection: Connection[Any], result: SyncResult, tzdata_version: str, now: datetime | None) -> bool:
    """Return whether hosts with newer time zone data make the slots: two versions could make one slot twice."""
    known = store.tzdata_in_use(connection, str(result.namespace), now)
    if any(is_older(tzdata_version, other) for other in known.presented):
        return True
    if is_older(tzdata_version, known.in_force or ""):
        result.find(
            f"this host has time zone data {tzdata_version}, and the slots were computed with {known.in_force}. No "
            "host with that data ticks any more, so slots are computed with the older data. Upgrade tzdata on this host"
        )
    return False


def account_for_due_slots(
    connection: Connection[Any], result: SyncResult, tzdata_version: str, now: datetime | None, deadline: float
) -> None:
    """Account for the due slots of the namespace, unless that is for hosts with newer data than ``tzdata_version``."""
    from yamlsched.sync import due

    assert result.namespace is not None
    if _leaves_slots(connection, result, tzdata_version, now):
        return
    try:
        result.made = due.account_for_due_slots(connection, result.namespace, now, deadline)
    except psycopg.Error as error:
        if connection.closed:
            raise
        result.made = due.DueResult()
        result.find(f"due slots could not be read: {reason(error)}. The next tick tries again")
    result.find(*result.made.problems)


def inspect_file(
    connection: Connection[Any], schedule: ScheduleFile, snapshot: Snapshot, now: datetime | None = None
) -> SyncResult:
    """Return where the file stands, without applying it or making runs."""
    from yamlsched.sync import apply

    return current(snapshot, schedule) or apply.inspect_file(connection, schedule, snapshot.namespace, now)


def claimable_jobs(connection: Connection[Any], schedule: ScheduleFile, result: SyncResult) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim: those whose own entry in its file is valid.

    While the file is held back, only those whose handler is that of the file in force: a service that shares the
    namespace by mistake may have a job of the same name.
    """
    from yamlsched.sync import apply

    return apply.claimable_jobs(connection, schedule, result)


def account_for_owed_slots(
    connection: Connection[Any], namespace: str, ids: list[int], now: datetime | None = None
) -> tuple[datetime, list[Definition], DueResult]:
    """Lock definitions and account for all that they owe, inside the caller's transaction, before they are changed.

    Returns the instant up to which that holds (the one to write as ``paused_at``), and the definitions as they are.
    """
    from yamlsched.sync import due

    return due.account_for_owed_slots(connection, namespace, ids, now)
