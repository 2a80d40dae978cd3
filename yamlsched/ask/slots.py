"""What became of each slot of a job: its run, its gap, or why it has neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.ask.runs import RunRow, runs, took
from yamlsched.ask.search import Filter
from yamlsched.db.query import execute, fetch, fetch_column, now
from yamlsched.runs.lifecycle import error_text
from yamlsched.sync.definitions import Definition
from yamlsched.timetable.keys import date_key, minute_key

MAX_ROWS = 300
"""Gaps of a span that are read, and runs of a former cron."""


@dataclass(frozen=True)
class PrunedRun:
    """The run that a slot had, of which only the key is left."""

    run_id: int
    pruned_at: datetime


@dataclass(frozen=True)
class GapRow:
    """A row of skipped_slots."""

    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str
    recorded_at: datetime
    detail: str | None = None  # of upstream: the job, and its run after a colon


@dataclass(frozen=True)
class SlotAccount:
    """What became of a slot, or of an enqueued run of a job without slots.

    ``state`` is one of: succeeded, retried (succeeded after a failed attempt), failed (waits for a
    retry), dead, cancelled, running, queued; of a slot without a run: skipped, future, due, pruned,
    unknown.
    """

    at: datetime
    state: str
    run: RunRow | None = None
    pruned: PrunedRun | None = None
    gap: GapRow | None = None

    @property
    def took(self) -> timedelta | None:
        """How long the latest attempt took."""
        return took(self.run) if self.run and self.state != "cancelled" else None

    @property
    def error(self) -> str:
        """The error that the run still has."""
        if self.run is None or self.state not in ("failed", "dead"):
            return ""
        return error_text(self.run.error_type, self.run.last_error)


@dataclass(frozen=True)
class Accounts:
    """The slots of a span, and the gaps that overlap it, as of ``now``."""

    now: datetime
    slots: list[SlotAccount]
    gaps: list[GapRow]


def accounts(
    connection: psycopg.Connection[Any],
    job: Definition,
    namespace: str,
    slots: Sequence[datetime],
    span: tuple[datetime, datetime] | None = None,
) -> Accounts:
    """Return what became of ``slots``, oldest first; with a ``span``, also the runs of a former
    cron in it.
    """
    if not slots and span is None:
        return Accounts(now(connection), [], [])
    start, end = span or (slots[0], slots[-1])
    parameters = {
        "id": job.id,
        "namespace": namespace,
        "job_type": job.job_type,
        "slots": list(slots),
        "keys": [key for slot in slots for key in _possible_keys(job.job_type, slot)],
        "is_span": span is not None,
        "start": start,
        "end": end,
        "limit": MAX_ROWS,
    }
    ids = [0, *fetch_column(connection, "timeline.runs_of_slots", **parameters)]
    everything = {**Filter().parameters(None), "namespace": namespace}
    rows = runs(connection, everything, low=1, high=max(ids) + 1, limit=len(ids), ids=ids)
    of_slot = {at: run for run in rows if (at := run.scheduled_for) is not None}
    pruned = {
        holder.scheduled_for: PrunedRun(holder.run_id, holder.pruned_at)
        for holder in execute(connection, "slots.key_holders", **parameters)
        if holder.pruned_at is not None and holder.job_type == job.job_type
    }
    gaps, at = fetch(connection, GapRow, "timeline.gaps", **parameters), now(connection)

    def account(slot: datetime) -> SlotAccount:
        run = of_slot.get(slot)
        gap = next((gap for gap in gaps if gap.first_slot <= slot <= gap.last_slot), None)
        if run is not None:
            return SlotAccount(slot, state_of(run), run, pruned.get(slot), gap)
        state = (
            "pruned" if slot in pruned else "skipped" if gap else _state_without_run(job, slot, at)
        )
        return SlotAccount(slot, state, None, pruned.get(slot), gap)

    return Accounts(at, [account(slot) for slot in sorted({*slots, *of_slot})], gaps)


def _possible_keys(job_type: str, at: datetime) -> list[str]:
    """Return the keys that the run of a slot may have, whatever cron and time zone the job had
    then.
    """
    return [
        minute_key(job_type, at),
        *(date_key(job_type, at + timedelta(days=days)) for days in (-1, 0, 1)),
    ]


def state_of(run: RunRow) -> str:
    return "retried" if run.status == "succeeded" and run.attempts > 1 else run.status


def _state_without_run(job: Definition, at: datetime, now: datetime) -> str:
    if at > now:
        return "future"
    if at <= job.effective_from:
        return "unknown"
    return "pruned" if job.last_slot_at is not None and at <= job.last_slot_at else "due"
