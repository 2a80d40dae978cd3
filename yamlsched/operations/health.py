"""The health of a namespace: the state of its jobs, and the files that its hosts present. Pure, except for reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg

from yamlsched.durations import between
from yamlsched.runs import error_text
from yamlsched.store.health import (
    Health,
    JobHealth,
    Known,
    LackingHost,
    Overview,
    PresentedFile,
    RefusedFile,
    hosts,
    overview,
    read,
    read_all,
    search_texts,
    suspects,
    totals,
)
from yamlsched.times import rfc3339

__all__ = [
    "Health",
    "JobHealth",
    "Overview",
    "hosts",
    "note",
    "overview",
    "read",
    "read_all",
    "read_suspects",
    "read_worst",
    "search_texts",
    "suspects",
    "totals",
]

DRIFT_TOLERANCE = timedelta(minutes=10)
"""How long hosts may present another file than the one in force: a rolling deploy has ended by then."""
HEALTHY_STATES = ("ok", "running", "new")
MAX_SUSPECTS = 1_000_000
"""Jobs of which the problems are read: all."""


def read_worst(
    connection: psycopg.Connection[Any], namespace: str, within: timedelta, max_jobs: int
) -> tuple[Health, int]:
    """Return the health of ``namespace`` with the jobs that need attention, and how many jobs it has.

    These are the jobs in none of ``HEALTHY_STATES``, and those that a check may report. All are read if they are at
    most ``max_jobs``.
    """
    found = overview(connection, namespace, within, size=1, max_suspects=MAX_SUSPECTS, healthy=HEALTHY_STATES)
    ids = None if found.present <= max_jobs else [*found.unhealthy, *found.suspects]
    return read(connection, namespace, within, ids, found), found.present


def read_suspects(connection: psycopg.Connection[Any], namespace: str, within: timedelta) -> Health:
    """Return the health of ``namespace`` with the jobs that a check may report, without workers; see ``suspects``."""
    known = Known(totals(connection, namespace), [])
    return read(connection, namespace, within, suspects(connection, [namespace], within, MAX_SUSPECTS), known)


def queue(health: Health) -> dict[str, Any]:
    """Return the numbers of unfinished and of dead runs over all jobs, and since when the oldest due run waits."""
    return {name: value for name, value in health.totals._asdict().items() if name != "jobs"}


def effects_in_doubt(health: Health, waits_for: str) -> int:
    """Return how many effects in doubt wait for a ``person``, or for a ``retry``, which resolves them."""
    return sum(effects for (_, what), effects in health.in_doubt_counts.items() if what == waits_for)


def refusal(file: RefusedFile) -> str:
    """Return a sentence that says that a file is refused, and what to do."""
    errors = "1 error" if file.mistakes == 1 else f"{file.mistakes} errors"
    return (
        f"{file.place} has presented a file with {errors} since {rfc3339(file.since, 'seconds')}; "
        "not applied: run yamlsched validate there"
    )


def lack(host: LackingHost) -> str:
    """Return a sentence that says why a host does not claim the runs of a job."""
    return f"{host.place} cannot start job {host.job_type}: {host.reason}"


def pruning(file: PresentedFile) -> str:
    """Return why nothing is pruned by the file in force; "" if pruning works."""
    if file.prune_failing_since is None:
        return ""
    return f"pruning has failed since {rfc3339(file.prune_failing_since, 'seconds')}: {file.prune_error}"


def first_places(file: PresentedFile) -> str:
    return ", ".join(file.presented_by[:3]) + (" and others" if len(file.presented_by) > 3 else "")


def environment(file: PresentedFile) -> str:
    return f'environment "{file.environment}"' if file.environment else "no environment"


def in_force(health: Health) -> PresentedFile | None:
    """Return the file that was applied last."""
    return next((file for file in health.files if file.in_force), None)


def not_in_force(health: Health) -> Sequence[PresentedFile]:
    """Return the other files that hosts present: held back, of another environment, or not updated yet."""
    return [file for file in health.files if not file.in_force]


def drift(health: Health) -> list[PresentedFile]:
    """Return the files that have been presented for longer than a rolling deploy takes, but are not in force."""
    current = in_force(health)
    return [file for file in not_in_force(health) if time_presented(file, current) > DRIFT_TOLERANCE]


def time_presented(file: PresentedFile, current: PresentedFile | None) -> timedelta:
    """Return how long ``file`` was presented since ``current`` was applied."""
    if file.presented_since_at is None or file.last_presented_at is None:
        return timedelta(0)
    applied_at = current.applied_at if current is not None else None
    return file.last_presented_at - max(file.presented_since_at, applied_at or file.presented_since_at)


def note(job: JobHealth, health: Health) -> str:
    """Return what explains the state of ``job``; "" if nothing has to be explained."""
    if job.paused:
        until = f" until {rfc3339(job.paused_until, 'seconds')}" if job.paused_until else ""
        reason = f": {job.paused_reason}" if job.paused_reason else ""
        age = f" {between(job.paused_at, health.now)} ago" if job.paused_at else ""
        return f"paused{age} by {job.paused_by or 'an operator'}{until}{reason}"
    if job.overdue_since:
        return f"since {rfc3339(job.overdue_since, 'seconds')}: {job.overdue_why}"
    if job.failure_streak:
        return error_text(job.last_error_type, job.last_error)
    if job.open_slot_run_id and job.next_slot_at and job.next_slot_at < health.now:
        if job.overlap == "skip":
            return f"the next slot will be skipped: run {job.open_slot_run_id} is unfinished"
        return f"the next slot waits for run {job.open_slot_run_id}"
    return ""
