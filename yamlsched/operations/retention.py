"""Housekeeping: what is over is pruned, in batches, within a budget of time."""

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
"""Rows of one statement: it takes some tens of milliseconds, and nobody waits for its locks."""
MAX_JOBS_NAMED = 10
"""In one log line."""
REST_RATIO = 2.0
"""After a batch, a pause of so many times what it took: workers keep most of the server."""


@dataclass
class HousekeepingReport:
    """What was tidied up. ``complete`` is false where the budget ran out: there is more."""

    cancelled: int = 0
    runs: int = 0
    keys: int = 0
    effects: int = 0
    files: int = 0
    complete: bool = False


def retention_of(stored: dict[str, str]) -> Retention:
    """Return the retention that the file in force was applied with."""
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
    """Cancel what retired jobs left undone; return whether that is complete."""
    after = (0, 0)
    while True:
        begun = time.monotonic()
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
        time.sleep(REST_RATIO * (time.monotonic() - begun))


def housekeep(
    connection: psycopg.Connection[Any],
    namespace: str,
    budget_seconds: float,
    now: datetime | None = None,
    progress: Callable[[HousekeepingReport], None] | None = None,
) -> HousekeepingReport:
    """Cancel what retired jobs left undone, and prune by the retention of the file in force.

    Stops between two batches once ``budget_seconds`` are over; what was done stays done. Two at once share the work.
    """
    deadline = time.monotonic() + budget_seconds
    done = HousekeepingReport()
    if not _cancel_retired(connection, namespace, deadline, now, done, progress):
        return done
    file = retention.in_force(connection, namespace, now)
    keep = retention_of(file.retention)
    before = {name: file.now - getattr(keep, name) for name in ("succeeded", "dead", "cancelled")}

    place: retention.PrunePosition | None = retention.PrunePosition()
    while place is not None:
        begun = time.monotonic()
        pruned, following = retention.runs(connection, namespace, before, place, BATCH_ROWS, file.now)
        place = following if pruned or following != place else None  # all of a batch may be held by somebody
        done.runs += pruned
        if progress:
            progress(done)
        if time.monotonic() > deadline:
            return done
        if place is not None:
            time.sleep(REST_RATIO * (time.monotonic() - begun))
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
