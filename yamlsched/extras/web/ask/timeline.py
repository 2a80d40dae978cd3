"""What happened to each slot of a job over a span of time: its run, its gap, or why it
has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any

from psycopg import Connection

from yamlsched.ask.gaps import gap_sentence
from yamlsched.ask.runs import RunRow
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.ask.slots import SlotAccount, accounts, state_of
from yamlsched.ask.trail import actions_on, paused_by
from yamlsched.db.query import execute, fetch
from yamlsched.runs.enqueue import PRIORITIES
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import slots
from yamlsched.timetable.calendars import of_rows, skipped_by
from yamlsched.timetable.cron import Cron, parse_schedule
from yamlsched.timetable.zones import zone

MAX_RUNS_OF_DAY = 100
"""Runs that are read for a day, to find a success."""
MAX_FAILED_RUNS = 3_000
"""Runs of a job that failed last, and that died last, which are read for all of its days."""


@dataclass(frozen=True)
class DayOfJob:
    """How a job's runs ended on a day, pruned ones included."""

    job_type: str
    nth: int
    dead: int
    retried: int  # succeeded after a failed attempt
    retrying: int  # have failed and are unfinished
    succeeded: bool
    cancelled: bool  # unknown if any succeeded
    reasons: list[str]  # for which slots were skipped


@dataclass(frozen=True)
class JobFacts:
    """What a job is: the columns of its definition that people read, and its followers."""

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
    start_within: timedelta
    finish_within: timedelta | None
    unique_rule: dict[str, Any] | None
    expires_after: timedelta | None
    pause_after: int | None
    on_dead: list[str]
    on_failure: list[str]
    on_success: list[str]
    enabled: bool
    priority: str
    queue: str
    created_at: datetime
    updated_at: datetime
    notify: list[str]  # the targets in words
    after: list[str]  # the jobs that it follows
    followers: list[str]


def day_rows(
    connection: Connection[Any],
    namespace: str,
    jobs: Mapping[str, str],
    days: Mapping[str, Sequence[tuple[date, datetime, datetime]]],
) -> list[DayOfJob]:
    """Return what happened to each job on each day of its time zone, from an instant to another;
    ``nth`` is the place of the day.

    ``jobs`` are time zones by the names of jobs.
    """
    flat = [
        (timezone, nth, *day) for timezone, parts in days.items() for nth, day in enumerate(parts)
    ]
    columns = ("span_zones", "nths", "days", "starts", "ends")
    parameters: dict[str, Any] = {
        name: [row[place] for row in flat] for place, name in enumerate(columns)
    }
    parameters |= {
        "namespace": namespace,
        "jobs": list(jobs),
        "zones": list(jobs.values()),
        "limit": MAX_RUNS_OF_DAY,
        "most": MAX_FAILED_RUNS,
    }
    return fetch(connection, DayOfJob, "timeline.days", **parameters)


def job_facts(connection: Connection[Any], namespace: str, name: str) -> JobFacts | None:
    """Return what a job is; None if there is none of that name."""
    rows = {row.job_type: row for row in all_jobs(connection, namespace)}
    if name not in rows:
        return None
    followers = [row.job_type for row in rows.values() if name in row.after and not row.retired_at]
    names = rows[name].notify
    targets = execute(connection, "notify.targets", namespace=namespace, names=names)
    notify = [f"{one.name}: {', '.join(one.events)} (address in {one.url_env})" for one in targets]
    priority = PRIORITIES[rows[name].priority - 1]
    made = {"followers": followers, "priority": priority, "notify": notify}
    columns = [field.name for field in fields(JobFacts) if field.name not in made]
    return JobFacts(**{column: getattr(rows[name], column) for column in columns}, **made)


PRUNED_STATES = ("succeeded", "retried", "dead", "cancelled")
"""Of slots, by the numbers of `job_days`."""
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


@dataclass(frozen=True)
class TimelineGap:
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
    cells: Sequence[SlotAccount]
    gaps: Sequence[TimelineGap]


def timeline(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    now: datetime,
    span: str,
    until: datetime | None,
) -> Timeline:
    """Return the timeline of a job that has a cron: ``span`` ends at ``until``, or a little after
    ``now``.

    A span that is "" or that has too many slots is replaced by the usual one.
    """
    assert job.schedule is not None
    cron, where = parse_schedule(job.schedule), zone(job.timezone)
    numbers = {name: _number(cron, where, now, length) for name, length in SPANS.items()}
    spans = [name for name in SPANS if numbers[name] <= MAX_SLOTS] or ["1h"]
    if span not in spans:
        span = next((name for name in reversed(spans) if numbers[name] <= USUAL_SLOTS), spans[0])
    end = until if until is not None else now + SPANS[span] / LEAD
    start = end - SPANS[span]
    calendars = of_rows(job.skip_on), of_rows(job.only_on)
    every = slots.slots(cron, where, start, end)
    # those that a calendar will skip are not coming; of those of the past there is a gap
    recent = [
        slot for slot in every if slot.at <= now or not skipped_by(*calendars, slot.nominal.date())
    ][-MAX_SLOTS:]
    known = accounts(connection, job, namespace, [slot.at for slot in recent], (start, end))
    actions = (
        actions_on(connection, namespace, job.job_type)
        if any(gap.reason == "paused" for gap in known.gaps)
        else []
    )
    return Timeline(
        start=start,
        end=end,
        now=now,
        span=span,
        spans=spans,
        cells=_with_pruned(connection, job, known.slots, (start, end)),
        gaps=[
            TimelineGap(
                gap.first_slot,
                gap.last_slot,
                gap.slots,
                gap.reason,
                gap_sentence(gap, paused_by(gap, actions)),
            )
            for gap in known.gaps
        ],
    )


def _with_pruned(
    connection: Connection[Any],
    job: Definition,
    slots: Sequence[SlotAccount],
    span: tuple[datetime, datetime],
) -> list[SlotAccount]:
    """Return the slots that were not skipped. One whose run was pruned has the state in which all
    pruned runs of its day ended, if that is one.
    """
    parameters = {"id": job.id, "start": span[0], "end": span[1]}
    ends = {
        day: [state for state, number in zip(PRUNED_STATES, numbers, strict=True) if number]
        for day, *numbers in execute(connection, "timeline.job_days", **parameters)
    }
    cells = []
    for slot in slots:
        states = ends.get(slot.at.astimezone(zone(job.timezone)).date(), [])
        # an earlier one may have had another day, in another time zone
        if slot.state == "pruned" and slot.at > job.effective_from and len(states) == 1:
            cells.append(replace(slot, state=states[0]))
        elif slot.state != "skipped":
            cells.append(slot)
    return cells


def of_runs(rows: Sequence[RunRow], now: datetime) -> Timeline | None:
    """Return the timeline of the newest runs of a job without slots; None if it has none."""
    cells = [
        SlotAccount(row.started_at or row.finished_at or row.run_at, state_of(row), row)
        for row in rows
    ]
    if not cells:
        return None
    cells.sort(key=lambda cell: cell.at)
    first, last = cells[0].at, max(cells[-1].at, now)
    margin = max((last - first) / 40, timedelta(minutes=1))
    return Timeline(first - margin, last + margin, now, "", (), cells, ())


def _number(cron: Cron, where: Any, now: datetime, length: timedelta) -> int:
    span = slots.span(cron, where, now - length, now)
    return span.count if span else 0
