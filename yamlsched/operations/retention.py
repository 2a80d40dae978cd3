"""Housekeeping: rows older than the retention are pruned, in batches, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import psycopg

from yamlsched import durations, log
from yamlsched.definitions.job import Retention
from yamlsched.store import definitions, files, retention
from yamlsched.times import MAX_DURATION

BATCH_ROWS = 1_000
"""Rows of one statement: it takes some tens of milliseconds, so its locks delay nothing."""
MAX_JOBS_NAMED = 10
"""In one log line."""
REST_RATIO = 2.0
"""The pause after a batch, in multiples of the time it took: workers keep most of the server."""


@dataclass
class HousekeepingReport:
    """How many rows were cancelled or pruned. ``complete`` is false if the time limit was reached first."""

    cancelled: int = 0
    runs: int = 0
    keys: int = 0
    effects: int = 0
    files: int = 0
    complete: bool = False


def retention_of(stored: dict[str, str]) -> Retention:
    """Return the retention as it is stored with the file in force."""
    known = {field.name for field in fields(Retention)}
    return Retention(
        **{name: min(durations.parse(text), MAX_DURATION) for name, text in stored.items() if name in known}
    )


def _cancel_retired(
    connection: psycopg.Connection[Any],
    namespace: str,
    deadline: float,
    now: datetime | None,
    done: HousekeepingReport,
    progress: Callable[[HousekeepingReport], None] | None,
) -> bool:
    """Cancel the unfinished runs of retired jobs; return whether none is left."""
    after = (0, 0)
    while True:
        started = time.monotonic()
        runs = definitions.cancel_retired(connection, namespace, now, after, BATCH_ROWS)
        if runs:
            jobs = sorted({run.job_type for run in runs})
            named = ",".join(jobs[:MAX_JOBS_NAMED]) + (
                f",+{len(jobs) - MAX_JOBS_NAMED}" if len(jobs) > MAX_JOBS_NAMED else ""
            )
            log.warning("runs.cancelled", jobs=named, runs=len(runs), reason="job retired")
            after = (runs[-1].definition_id, runs[-1].id)
            done.cancelled += len(runs)
            if progress:
                progress(done)
        if len(runs) < BATCH_ROWS:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(REST_RATIO * (time.monotonic() - started))


def housekeep(
    connection: psycopg.Connection[Any],
    namespace: str,
    budget_seconds: float,
    now: datetime | None = None,
    progress: Callable[[HousekeepingReport], None] | None = None,
) -> HousekeepingReport:
    """Cancel the unfinished runs of retired jobs, and prune by the retention of the file in force.

    Stops between two batches after ``budget_seconds``; finished batches are kept. Concurrent calls share the work.
    """
    deadline = time.monotonic() + budget_seconds
    done = HousekeepingReport()
    if not _cancel_retired(connection, namespace, deadline, now, done, progress):
        return done
    file = retention.in_force(connection, namespace, now)
    keep = retention_of(file.retention)
    before = {name: file.now - getattr(keep, name) for name in ("succeeded", "dead", "cancelled")}

    position: retention.PrunePosition | None = retention.PrunePosition()
    while position is not None:
        started = time.monotonic()
        pruned, following = retention.runs(connection, namespace, before, position, BATCH_ROWS, file.now)
        position = following if pruned or following != position else None  # others may have locked the whole batch
        done.runs += pruned
        if progress:
            progress(done)
        if time.monotonic() > deadline:
            return done
        if position is not None:
            time.sleep(REST_RATIO * (time.monotonic() - started))
    for name, forget in (("keys", retention.keys), ("effects", retention.effects)):
        while gone := forget(connection, namespace, file.now - getattr(keep, name), BATCH_ROWS):
            setattr(done, name, getattr(done, name) + gone)
            if progress:
                progress(done)
            if time.monotonic() > deadline:
                return done
    done.files = files.prune_unapplied(connection, namespace, now)
    if file.id is not None:
        retention.done(connection, file.id, file.now)
    done.complete = True
    return done
