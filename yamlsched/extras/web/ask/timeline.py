"""What happened to each slot of a job over a span of time: its run, its gap, or why it has neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched.ask.runs import RunRow
from yamlsched.ask.why import actions_on, gap_sentence, paused_by
from yamlsched.db.query import fetch, load
from yamlsched.runs.lifecycle import error_text
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import slots
from yamlsched.timetable.cron import Cron, parse_cron
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.zones import zone

if TYPE_CHECKING:
    from psycopg import Connection


MAX_RUNS_OF_DAY = 100
"""Runs of one kind that are read for a day."""


@dataclass(frozen=True)
class DayOfJob:
    """How a job's runs ended in a span of time. The numbers are at most ``MAX_RUNS_OF_DAY``."""

    job_type: str
    nth: int
    dead: int
    retried: int  # succeeded after a failed attempt
    retrying: int  # have failed and are unfinished
    succeeded: bool
    cancelled: bool
    reasons: list[str]  # for which slots were skipped


@dataclass(frozen=True)
class JobFacts:
    """What a job is: the columns of its definition that people read."""

    id: int
    job_type: str
    description: str
    owner: str
    tags: list[str]
    handler: str | None
    command: list[str]
    schedule: str | None
    timezone: str
    max_attempts: int
    backoff: dict[str, Any]
    timeout: timedelta
    overlap: str
    catchup: str
    catchup_window: timedelta
    spread: timedelta
    on_dead: str | None
    enabled: bool
    priority: str
    executor: str
    isolation: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class SlotRun:
    """The run of a slot."""

    slot: datetime
    run_id: int
    key: str | None
    status: str
    attempts: int
    max_attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    error_type: str | None


@dataclass(frozen=True)
class GapRow:
    """A row of skipped_slots."""

    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str
    recorded_at: datetime


def day_rows(
    connection: psycopg.Connection[Any],
    namespace: str,
    jobs: Mapping[str, str],
    spans: Mapping[str, Sequence[tuple[datetime, datetime]]],
) -> list[DayOfJob]:
    """Return what happened to each job in each span of its time zone; ``nth`` is the place of the span.

    ``jobs`` are time zones by the names of jobs.
    """
    flat = [(timezone, nth, *span) for timezone, parts in spans.items() for nth, span in enumerate(parts)]
    columns = ("span_zones", "nths", "starts", "ends")
    given: dict[str, Any] = {name: [row[place] for row in flat] for place, name in enumerate(columns)}
    given |= {"namespace": namespace, "jobs": list(jobs), "zones": list(jobs.values()), "limit": MAX_RUNS_OF_DAY}
    return fetch(connection, DayOfJob, load("timeline")["days"], given)


def job_facts(connection: psycopg.Connection[Any], namespace: str, name: str) -> JobFacts | None:
    """Return what a job is; None if there is none of that name."""
    return next(iter(fetch(connection, JobFacts, load("timeline")["job"], {"namespace": namespace, "job": name})), None)


def runs_of_keys(connection: psycopg.Connection[Any], namespace: str, id: int, keys: Sequence[str]) -> list[SlotRun]:
    """Return the runs of a job's slots that have these keys."""
    return fetch(
        connection, SlotRun, load("timeline")["runs_of_keys"], {"namespace": namespace, "id": id, "keys": list(keys)}
    )


def runs_ended(
    connection: psycopg.Connection[Any], id: int, start: datetime, end: datetime, limit: int
) -> list[SlotRun]:
    """Return runs of a job's slots in [start, end) among the first ``limit`` that ended from ``start`` on."""
    given = {"id": id, "start": start, "end": end, "limit": limit}
    return fetch(connection, SlotRun, load("timeline")["runs_ended"], given)


def gap_rows(connection: psycopg.Connection[Any], id: int, start: datetime, end: datetime, limit: int) -> list[GapRow]:
    """Return the gaps of a job in [start, end), oldest first."""
    return fetch(connection, GapRow, load("timeline")["gaps"], {"id": id, "start": start, "end": end, "limit": limit})


SPANS = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "3d": timedelta(days=3),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
    "1y": timedelta(days=365),
    "5y": timedelta(days=1826),
}
"""The spans that can be shown, by name."""
MAX_SLOTS = 300
"""A span with more slots is not offered: they could not be told apart."""
USUAL_SLOTS = 80
"""The span that is shown first is the longest one with at most this many slots."""
LEAD = 12
"""A timeline that ends now also shows what comes within this part of its span."""
MAX_GAPS = 200
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Cell:
    """A slot, or an enqueued run of a job without slots.

    ``state`` is one of: succeeded, retried (succeeded after a failed attempt), failed (waits for a retry), dead,
    cancelled, running, queued; of a slot without a run: future, due, pruned, unknown.
    """

    at: datetime
    state: str
    run: SlotRun | None = None

    @property
    def took(self) -> timedelta | None:
        """How long the latest attempt took."""
        if self.run is None or self.run.started_at is None or self.run.finished_at is None or self.state == "cancelled":
            return None
        return max(self.run.finished_at - self.run.started_at, timedelta(0))

    @property
    def error(self) -> str:
        if self.run is None or self.state not in ("failed", "dead"):
            return ""
        return error_text(self.run.error_type, self.run.last_error)


@dataclass(frozen=True)
class Gap:
    """Slots that were skipped for one reason, and that in words."""

    first: datetime
    last: datetime
    slots: int
    reason: str
    sentence: str


@dataclass(frozen=True)
class Timeline:
    """The slots in (start, end]. ``spans`` are the names of those that can be chosen."""

    start: datetime
    end: datetime
    now: datetime
    span: str
    spans: Sequence[str]
    cells: Sequence[Cell]
    gaps: Sequence[Gap]


def timeline(
    connection: Connection[Any], namespace: str, job: Definition, now: datetime, span: str, until: datetime | None
) -> Timeline:
    """Return the timeline of a job that has a cron: ``span`` ends at ``until``, or a little after ``now``.

    A span that is "" or that has too many slots is replaced by the usual one.
    """
    assert job.schedule is not None
    cron, where = parse_cron(job.schedule), zone(job.timezone)
    numbers = {name: _number(cron, where, now, length) for name, length in SPANS.items()}
    spans = [name for name in SPANS if numbers[name] <= MAX_SLOTS] or ["1h"]
    if span not in spans:
        span = next((name for name in reversed(spans) if numbers[name] <= USUAL_SLOTS), spans[0])
    end = until if until is not None else now + SPANS[span] / LEAD
    start = end - SPANS[span]
    found = list(slots.slots(cron, where, start, end))[-MAX_SLOTS:]
    gaps = gap_rows(connection, job.id, start, end, MAX_GAPS)
    actions = actions_on(connection, namespace, job) if any(gap.reason == "paused" for gap in gaps) else []
    runs = _runs(
        connection, namespace, job, {slot_key(job.job_type, cron, slot): slot.at for slot in found}, start, end
    )
    cells = [Cell(at, _state_of(run), run) for at, run in runs.items()]
    cells += [
        Cell(slot.at, _state_without_run(job, slot.at, now))
        for slot in found
        if slot.at not in runs and not any(gap.first_slot <= slot.at <= gap.last_slot for gap in gaps)
    ]
    return Timeline(
        start=start,
        end=end,
        now=now,
        span=span,
        spans=spans,
        cells=sorted(cells, key=lambda cell: cell.at),
        gaps=[
            Gap(gap.first_slot, gap.last_slot, gap.slots, gap.reason, gap_sentence(gap, paused_by(gap, actions)))
            for gap in gaps
        ],
    )


def of_runs(rows: Sequence[RunRow], now: datetime) -> Timeline | None:
    """Return the timeline of the newest runs of a job without slots; None if it has none."""
    cells = [
        Cell(run.slot, _state_of(run), run)
        for row in rows
        for run in [
            SlotRun(
                row.started_at or row.finished_at or row.run_at,
                row.id,
                row.key,
                row.status,
                row.attempts,
                row.max_attempts,
                row.run_at,
                row.started_at,
                row.finished_at,
                row.last_error,
                row.error_type,
            )
        ]
    ]
    if not cells:
        return None
    cells.sort(key=lambda cell: cell.at)
    first, last = cells[0].at, max(cells[-1].at, now)
    margin = max((last - first) / 40, timedelta(minutes=1))
    return Timeline(first - margin, last + margin, now, "", (), cells, ())


def _number(cron: Cron, where: Any, now: datetime, length: timedelta) -> int:
    found = slots.span(cron, where, now - length, now)
    return found.count if found else 0


def _runs(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    keys: Mapping[str, datetime],
    start: datetime,
    end: datetime,
) -> dict[datetime, SlotRun]:
    """Return the runs of slots: by their keys, and if the cron was changed within the span, by their ends."""
    found = runs_of_keys(connection, namespace, job.id, list(keys))
    if job.effective_from > start:
        found += runs_ended(connection, job.id, start, end, MAX_SLOTS)
    return {run.slot: run for run in found if start < run.slot <= end}


def _state_of(run: SlotRun) -> str:
    return "retried" if run.status == "succeeded" and run.attempts > 1 else run.status


def _state_without_run(job: Definition, at: datetime, now: datetime) -> str:
    """Return the state of a slot that has neither a run nor a gap, as ``why`` judges it."""
    if at > now:
        return "future"
    if at <= job.effective_from:
        return "unknown"
    return "pruned" if job.last_slot_at is not None and at <= job.last_slot_at else "due"
