"""The audit trail of operators' actions, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched import durations
from yamlsched.store import audit
from yamlsched.store.audit import TrailEntry

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
"""What an entry of the trail says that somebody did, by verb."""
SAME_ACTION = timedelta(seconds=2)
READ_ENTRIES = 500
MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class TrailGroup:
    """One action: the entries of the runs or jobs that it changed, the newest first."""

    entries: Sequence[TrailEntry]

    @property
    def first(self) -> TrailEntry:
        return self.entries[0]


def page(
    connection: psycopg.Connection[Any], namespace: str, limit: int, before: int | None, **filters: str | None
) -> tuple[list[TrailGroup], int | None]:
    """Return up to ``limit`` actions, newest first, and where the next page starts; None if there is none.

    ``filters`` are those of ``store.audit.trail``. At most ``MAX_ENTRIES`` entries are read.
    """
    entries: list[TrailEntry] = []
    found: list[TrailGroup] = []
    is_last = False
    while not is_last and len(found) <= limit and len(entries) < MAX_ENTRIES:
        start = entries[-1].id if entries else before
        more = audit.trail(connection, namespace, limit=READ_ENTRIES, before=start, **filters)
        entries += more
        is_last = len(more) < READ_ENTRIES
        found = groups(entries)
    if len(found) > limit:
        return found[:limit], found[limit - 1].entries[-1].id
    return found, None if is_last else entries[-1].id


def groups(entries: Sequence[TrailEntry]) -> list[TrailGroup]:
    """Return the entries of each action together. An action on many runs has an entry for each."""
    found: list[list[TrailEntry]] = []
    for entry in entries:
        if found and _is_same_action(found[-1][-1], entry):
            found[-1].append(entry)
        else:
            found.append([entry])
    return [TrailGroup(group) for group in found]


def _is_same_action(later: TrailEntry, entry: TrailEntry) -> bool:
    def what(one: TrailEntry) -> tuple[object, ...]:
        return one.who, one.verb, one.job_type, one.by_form, one.detail.get("reason"), one.detail.get("was")

    is_near = later.at - entry.at < SAME_ACTION
    return entry.verb in ("retry", "cancel") and is_near and what(later) == what(entry)


def sentence(entry: TrailEntry, now: datetime, who: str | None = None) -> str:
    """Return what an entry says, for example "maria cancelled run 118 20s ago". ``who`` reads it."""
    actor = "you" if entry.who == who else entry.who
    kind, _, name = entry.target.partition(":")
    target = {"run": f"run {name}", "job": f"job {name}"}.get(kind, entry.target)
    ago = durations.approximate(max(now - entry.at, timedelta(0)))
    return f"{actor} {PAST.get(entry.verb, entry.verb)} {target} {ago} ago"
