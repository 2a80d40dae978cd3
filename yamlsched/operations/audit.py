"""The audit trail of operators' actions, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from yamlsched import durations
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


@dataclass(frozen=True)
class TrailGroup:
    """One action: the entries of the runs or jobs that it changed, the newest first."""

    entries: Sequence[TrailEntry]

    @property
    def first(self) -> TrailEntry:
        return self.entries[0]


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
