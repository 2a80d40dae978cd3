"""Housekeeping: rows older than the retention are pruned, in batches, within a time limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched import log
from yamlsched.definitions.job import Retention
from yamlsched.errors import EnvironmentFailed
from yamlsched.operations.archive import ArchiveFailed
from yamlsched.store import definitions, files, retention
from yamlsched.store.retention import Archive, FileInForce

BATCH_ROWS = 2_000
"""Rows of one statement: it takes some tens of milliseconds, so its locks delay nothing."""
MAX_JOBS_NAMED = 10
"""In one log line."""
REST_RATIO = 2.0
"""The pause after a batch while there is work, in multiples of the time it took: workers keep most of the server."""


@dataclass
class HousekeepingReport:
    """How many rows were cancelled or pruned. ``complete`` is false if the time limit was reached first."""

    cancelled: int = 0
    runs: int = 0
    keys: int = 0
    effects: int = 0
    files: int = 0
    complete: bool = False


def housekeep(
    connection: psycopg.Connection[Any],
    namespace: str,
    budget_seconds: float,
    now: datetime | None = None,
    progress: Callable[[HousekeepingReport], None] = lambda report: None,
    archive: Archive | None = None,
) -> HousekeepingReport:
    """Cancel the unfinished runs of retired jobs, and prune by the retention of the file in force.

    Stops between two batches after ``budget_seconds``; finished batches are kept. Concurrent calls share the work.
    What is pruned is given to ``archive``, in the transaction that deletes it.
    """
    started = time.monotonic()
    deadline = started + budget_seconds
    report = HousekeepingReport()
    for rests in _batches(connection, namespace, now, report, archive):
        progress(report)
        if time.monotonic() > deadline:
            return report
        if rests:
            time.sleep(REST_RATIO * (time.monotonic() - started))
        started = time.monotonic()
    report.complete = True
    return report


def _batches(
    connection: psycopg.Connection[Any],
    namespace: str,
    now: datetime | None,
    report: HousekeepingReport,
    archive: Archive | None,
) -> Iterator[bool]:
    """Execute one batch at a time and add it to ``report``; yield whether to rest before the next one."""
    after = (0, 0)
    while runs := definitions.cancel_retired(connection, namespace, now, after, BATCH_ROWS):
        jobs = sorted({run.job_type for run in runs})
        more = f",+{len(jobs) - MAX_JOBS_NAMED}" if len(jobs) > MAX_JOBS_NAMED else ""
        log.warning("runs.cancelled", jobs=",".join(jobs[:MAX_JOBS_NAMED]) + more, runs=len(runs), reason="job retired")
        report.cancelled += len(runs)
        if len(runs) < BATCH_ROWS:
            break
        after = (runs[-1].definition_id, runs[-1].id)
        yield True
    file = retention.in_force(connection, namespace, now)
    before = {name: file.now - age for name, age in _retention(file).ages().items()}
    position: retention.PrunePosition | None = retention.PrunePosition()
    while position is not None:
        pruned = retention.runs(connection, namespace, before, position, BATCH_ROWS, file.now, archive)
        position = pruned.following
        report.runs += pruned.rows
        yield pruned.is_busy and position is not None
    for kind in ("keys", "effects"):
        while (
            pruned := retention.others(connection, kind, namespace, before[kind], BATCH_ROWS, file.now, archive)
        ).rows:
            setattr(report, kind, getattr(report, kind) + pruned.rows)
            yield False
    report.files = files.prune_unapplied(connection, namespace, now)
    if file.id is not None:
        retention.done(connection, file.id, file.now)


def is_archived(connection: psycopg.Connection[Any], namespace: str) -> bool:
    """Return whether the file in force says that what is pruned is archived."""
    return _retention(retention.in_force(connection, namespace, None)).archive is not None


def _retention(file: FileInForce) -> Retention:
    """Return the retention of the file in force. Raises EnvironmentFailed if its row was changed by hand."""
    try:
        return Retention.from_row(file.retention)
    except (ValueError, TypeError) as error:
        raise EnvironmentFailed(
            f"the retention of the file in force is not valid in the database: {error}; nothing is pruned until it is "
            "corrected in yamlsched.schedule_files, or an edited file is applied"
        ) from error


def record_failure(connection: psycopg.Connection[Any], namespace: str, error: ArchiveFailed) -> None:
    """Record for ``status`` and ``doctor`` that nothing is pruned, and why."""
    file = retention.in_force(connection, namespace, None)
    if file.id is not None:
        retention.failed(connection, file.id, f"{socket.gethostname()}: {error}", file.now)
