"""The audit trail of operators' actions, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched import durations
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.ask.trail import TrailEntry, trail
from yamlsched.db.query import execute


@dataclass(frozen=True)
class Pause:
    """A pause that is in effect, and how many runs wait for its end."""

    job_type: str
    timezone: str
    paused_at: datetime
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    next_slot_at: datetime | None
    runs: int


def latest(connection: psycopg.Connection[Any], namespace: str, target: str) -> TrailEntry | None:
    """Return the latest action on ``target``."""
    return next(iter(trail(connection, namespace, target=target, limit=1)), None)


def start_request(
    connection: psycopg.Connection[Any], request: str, namespace: str, target: str
) -> None:
    """Let the caller's transaction carry out the form ``request``, after all others about the same
    ``target``.
    """
    parameters = {"request": request, "namespace": namespace, "target": target}
    execute(connection, "audit.start_request", **parameters)


def pauses(connection: psycopg.Connection[Any], namespace: str, now: datetime) -> list[Pause]:
    """Return the pauses that are in effect, the latest first."""
    jobs = [
        job
        for job in all_jobs(connection, namespace)
        if job.paused_at is not None
        and job.retired_at is None
        and (job.paused_until is None or job.paused_until > now)
    ]
    values = {"namespace": namespace, "ids": [job.id for job in jobs]}
    unfinished = execute(connection, "history.unfinished", **values).fetchall()
    waiting = {row.definition_id: row.runs - row.running for row in unfinished}
    pauses = [
        Pause(
            job.job_type,
            job.timezone,
            job.paused_at,
            job.paused_until,
            job.paused_by,
            job.paused_reason,
            job.next_slot_at,
            waiting.get(job.id, 0),
        )
        for job in jobs
    ]
    return sorted(pauses, key=lambda pause: pause.paused_at, reverse=True)


PAST = {
    "retry": "retried",
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "settle": "settled an effect of",
    "enqueue": "enqueued",
    "backfill": "created runs of past slots of",
    "identity": "renewed the identity of the",
}
"""What an entry of the trail says was done, by verb."""
RUN_VERBS, JOB_VERBS = ("retry", "cancel"), ("pause", "resume")
"""Those that can be done to many runs of a job, or to many jobs, at once."""
SAME_ACTION = timedelta(seconds=2)
READ_ENTRIES = 5_000


@dataclass(frozen=True)
class TrailGroup:
    """One action: entries of the runs or jobs that it changed, the newest first."""

    entries: Sequence[TrailEntry]

    @property
    def first(self) -> TrailEntry:
        return self.entries[0]

    @property
    def size(self) -> int:
        return len(self.entries)

    @property
    def end(self) -> int:
        """The id of the oldest entry."""
        return self.entries[-1].id


def page(
    connection: psycopg.Connection[Any],
    namespace: str,
    limit: int,
    before: int | None,
    **filters: str | None,
) -> tuple[list[TrailGroup], int | None]:
    """Return up to ``limit`` actions, newest first, and where the next page starts; None if there
    is none.

    ``filters`` are those of ``trail``. An action on many runs has an entry for each: the page ends
    after ``READ_ENTRIES``, and an action that has more is shown as several.
    """
    entries = trail(connection, namespace, limit=READ_ENTRIES, before=before, **filters)
    newest = groups(entries)
    if len(entries) < READ_ENTRIES and len(newest) <= limit:
        return newest, None
    if len(entries) == READ_ENTRIES and len(newest) > 1:
        newest.pop()  # it may continue, and is read again
    newest = newest[:limit]
    return newest, newest[-1].end


def groups(entries: Sequence[TrailEntry]) -> list[TrailGroup]:
    """Return the entries of each action together."""
    actions: list[list[TrailEntry]] = []
    for entry in entries:
        if actions and _is_same_action(actions[-1][-1], entry):
            actions[-1].append(entry)
        else:
            actions.append([entry])
    return [TrailGroup(group) for group in actions]


def _is_same_action(later: TrailEntry, entry: TrailEntry) -> bool:
    def what(entry: TrailEntry) -> tuple[object, ...]:
        job = None if entry.verb in JOB_VERBS else entry.job_type
        return entry.who, entry.verb, job, entry.detail.get("reason")

    is_near = abs(later.at - entry.at) < SAME_ACTION
    return entry.verb in (*RUN_VERBS, *JOB_VERBS) and is_near and what(later) == what(entry)


def sentence(entry: TrailEntry, now: datetime, who: str | None = None) -> str:
    """Return what an entry says, for example "maria cancelled run 118 20s ago".
    ``who`` reads it.
    """
    actor = "you" if entry.who == who else entry.who
    kind, _, name = entry.target.partition(":")
    target = {"run": f"run {name}", "job": f"job {name}"}.get(kind, entry.target)
    ago = durations.approximate(max(now - entry.at, timedelta(0)))
    return f"{actor} {PAST.get(entry.verb, entry.verb)} {target} {ago} ago"
