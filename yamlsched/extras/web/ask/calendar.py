"""The coming slots of a namespace, by the definitions that are in use. Pure, except
for ``read``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import psycopg

from yamlsched.ask.forecast import Forecast, Hour
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.errors import CronError, ScheduleError
from yamlsched.text import join_words
from yamlsched.timetable import slots
from yamlsched.timetable.calendars import of_rows
from yamlsched.timetable.cron import Cron, parse_schedule, without_skipped
from yamlsched.timetable.keys import offset
from yamlsched.timetable.slots import ClockChange
from yamlsched.timetable.upcoming import ScheduledJob, Upcoming, starts
from yamlsched.timetable.zones import zone


class CalendarJob(NamedTuple):
    """What decides the coming slots of a job, and what describes it. A named tuple: there may be
    many.
    """

    job_type: str
    schedule: str | None
    timezone: str
    spread: timedelta
    enabled: bool
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    description: str
    owner: str
    tags: list[str]
    skip_on: Sequence[dict[str, Any]] = ()
    only_on: Sequence[dict[str, Any]] = ()

    def is_paused(self, now: datetime) -> bool:
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > now)


def jobs(connection: psycopg.Connection[Any], namespace: str) -> list[CalendarJob]:
    """Return the jobs of a namespace by name, without retired ones."""
    return [
        CalendarJob(*[getattr(row, column) for column in CalendarJob._fields])
        for row in all_jobs(connection, namespace)
        if row.retired_at is None
    ]


CHANGE_HORIZON = timedelta(days=200)
"""How far ahead clock changes are looked for: the next one of a zone that has two a year."""
MAX_ZONES = 40
"""Time zones whose clock changes are looked for: those of most jobs."""
MAX_SHOWN_STARTS = 3
"""Starts of a job in an hour that are listed one by one."""
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Schedule:
    """The jobs that have coming slots by name, and those that have none, by the reason for that."""

    coming: dict[str, ScheduledJob]
    paused: list[CalendarJob]
    disabled: list[CalendarJob]
    enqueued: list[CalendarJob]
    unreadable: list[tuple[CalendarJob, str]]

    @property
    def timezones(self) -> list[str]:
        """The time zones of the jobs that have coming slots, those of most jobs first."""
        counts = Counter(job.timezone for job in self.coming.values())
        return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def scheduled(jobs: Sequence[CalendarJob], namespace: str, now: datetime) -> Schedule:
    """Return which jobs of a namespace have slots to come. A job that is paused until some time has
    those after it.
    """
    schedule = Schedule({}, [], [], [], [])
    for job in jobs:
        is_paused = job.is_paused(now)
        if not job.enabled:
            schedule.disabled.append(job)
        elif is_paused:
            schedule.paused.append(job)
        if job.schedule is None:
            if job.enabled and not is_paused:
                schedule.enqueued.append(job)
        elif job.enabled and not (is_paused and job.paused_until is None):
            try:
                cron, _ = parse_schedule(job.schedule), zone(job.timezone)
                cron = without_skipped(cron, of_rows(job.skip_on), of_rows(job.only_on))
            except (CronError, ScheduleError) as error:
                schedule.unreadable.append((job, str(error)))
                continue
            not_before = job.paused_until if is_paused else None
            shift = offset(namespace, job.job_type, job.spread)
            schedule.coming[job.job_type] = ScheduledJob(
                job.job_type, cron, job.timezone, shift, not_before
            )
    return schedule


# The list of coming slots


@dataclass(frozen=True)
class Coming:
    """The starts of one job in one hour: the first ones, and how many ``more`` there are."""

    job: ScheduledJob
    first: Sequence[Upcoming]
    more: int
    last: Upcoming


def agenda(
    forecast: Forecast, schedule: Schedule, now: datetime, hours: slice, limit: int
) -> tuple[list[tuple[Hour, list[Coming]]], int]:
    """Return the jobs that start in each of ``hours``, and how many of the last hour are left out.

    It ends with the hour in which ``limit`` jobs are listed.
    """
    listed: list[tuple[Hour, list[Coming]]] = []
    for nth in range(len(forecast.hours))[hours]:
        if not forecast.jobs_by_hour[nth]:
            continue
        names = forecast.jobs(nth)
        hour = forecast.hours[nth]
        begin, end = forecast.span.instant(hour.start), forecast.span.instant(hour.end)
        after = max(begin - MICROSECOND, now)
        rows = [_coming(schedule.coming[name], after, end - MICROSECOND) for name in names[:limit]]
        starting = sorted(
            (row for row in rows if row), key=lambda row: (row.first[0].run_at, row.job.name)
        )
        listed.append((hour, starting))
        limit -= len(names)
        if limit <= 0:
            return listed, -limit
    return listed, 0


def _coming(job: ScheduledJob, after: datetime, until: datetime) -> Coming | None:
    upcoming = starts(job, after, until)
    first = list(islice(upcoming, MAX_SHOWN_STARTS))
    if not first:
        return None
    rest = list(upcoming)
    return Coming(job, first, len(rest), (rest or first)[-1])


# Nights in which clocks change


@dataclass(frozen=True)
class ClockChangeNight:
    """A change of the clocks of one zone, what it means for slots in words, and the jobs for which
    it means that.
    """

    timezone: str
    change: ClockChange
    effects: Sequence[tuple[str, Sequence[str]]]
    unaffected: int

    @property
    def date(self) -> date:
        """The local date of the change."""
        return (self.change.at + self.change.before).date()

    @property
    def affected(self) -> int:
        """How many jobs it affects."""
        return sum(len(names) for _, names in self.effects)

    @property
    def sentence(self) -> str:
        """What clocks do."""
        at, before, after = self.change
        old, new = ((at + offset).replace(tzinfo=None) for offset in (before, after))
        day = "" if old.date() == new.date() else f"{new:%a %-d %b} "
        return (
            f"clocks go {'forward' if after > before else 'back'} from {old:%H:%M} to"
            f" {day}{new:%H:%M}"
        )


def clock_change_nights(schedule: Schedule, after: datetime) -> list[ClockChangeNight]:
    """Return the first clock change of each time zone after an instant, soonest first."""
    by_zone: defaultdict[str, list[ScheduledJob]] = defaultdict(list)
    for job in schedule.coming.values():
        by_zone[job.timezone].append(job)
    nights = []
    for name in schedule.timezones[:MAX_ZONES]:
        change = next(slots.clock_changes(zone(name), after, after + CHANGE_HORIZON), None)
        if change is not None:
            nights.append(_night(name, change, by_zone[name]))
    return sorted(nights, key=lambda night: (night.change.at, night.timezone))


def _night(timezone: str, change: ClockChange, jobs: Sequence[ScheduledJob]) -> ClockChangeNight:
    where = zone(timezone)
    by_effect: defaultdict[tuple[bool, str], list[str]] = defaultdict(list)
    unaffected = 0
    for job in jobs:
        text = effect(job.cron, where, change)
        if text and (job.not_before is None or job.not_before < change.at):
            by_effect[job.cron.wildcard, text].append(job.name)
        else:
            unaffected += 1
    ordered = sorted(by_effect.items(), key=lambda item: (item[0][0], item[1][0]))
    return ClockChangeNight(
        timezone, change, [(text, names) for (_, text), names in ordered], unaffected
    )


@lru_cache(maxsize=16384)
def effect(cron: Cron, where: ZoneInfo, change: ClockChange) -> str:
    """Return what a clock change does to the slots of an expression, in words; "" if nothing. See
    docs/time.md.
    """
    # wall times, as if they were UTC
    low, high = sorted((change.at + change.before, change.at + change.after))
    if low.date() == high.date():
        first, last = (edge.hour * 60 + edge.minute for edge in (low, high))
        if bisect_left(cron.times, first) == bisect_left(cron.times, last):
            return ""
    named = [
        slot.nominal
        for slot in slots.slots(cron, zone("UTC"), low - MICROSECOND, high - MICROSECOND)
    ]
    if not named:
        return ""
    clock = "%H:%M" if high - low < timedelta(days=1) else "%a %-d %b %H:%M"
    span, count = f"{low:{clock}} to {high:{clock}}", f"{len(named)} slot{'s' * (len(named) > 1)}"
    if change.after < change.before:
        if cron.wildcard:
            return f"{span} happens twice: {count} in the first pass, and again in the second"
        return f"{_times(named)} happens twice: runs in the first pass only"
    at_end = next(slots.slots(cron, where, change.at - MICROSECOND, change.at), None)
    if cron.wildcard or at_end is None:
        return f"{span} does not exist: no slot, instead of {len(named)}"
    if at_end.note:
        return at_end.note + (f"; {_times(named)} become one slot" if len(named) > 1 else "")
    return (
        f"{_times(named)} does not exist: the slot at {at_end.at.astimezone(where):%H:%M} counts"
        " for both"
    )


def _times(named: Sequence[datetime]) -> str:
    clocks = [f"{instant:%H:%M}" for instant in named]
    if len(clocks) <= MAX_SHOWN_STARTS:
        return join_words(clocks, "and")
    return f"{len(clocks)} times from {clocks[0]} to {clocks[-1]}"
