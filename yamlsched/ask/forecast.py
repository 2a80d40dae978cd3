"""How many jobs start in each hour and each minute of a span, and which start together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from yamlsched.timetable import slots
from yamlsched.timetable.calendars import without_skipped
from yamlsched.timetable.keys import run_at
from yamlsched.timetable.slots import EPOCH, MINUTE
from yamlsched.timetable.upcoming import ScheduledJob
from yamlsched.timetable.zones import zone

MIN_PILE_UP_JOBS = 5
"""Jobs that start in one minute are a pile-up from this number on."""
MICROSECOND = timedelta(microseconds=1)


class ForecastSpan(NamedTuple):
    """The instants (after, until], and the time zone whose hours are shown."""

    after: datetime
    until: datetime
    timezone: str

    @property
    def first_minute(self) -> int:
        """The first minute that has an instant of the span, since 1970."""
        return (self.after + MICROSECOND - EPOCH) // MINUTE

    @property
    def minutes(self) -> int:
        """How many minutes the span touches."""
        return (self.until - EPOCH) // MINUTE - self.first_minute + 1

    def instant(self, minute: int) -> datetime:
        """Return the instant of a minute of the span."""
        return EPOCH + (self.first_minute + minute) * MINUTE


class Hour(NamedTuple):
    """An hour of a local day, and the minutes [start, end) of the span that it has: none if clocks
    skip it.
    """

    date: date
    hour: int
    start: int
    end: int


class PileUp(NamedTuple):
    """Jobs that start together at ``clock``, a local time, at each of the instants ``at``."""

    clock: str
    names: tuple[str, ...]
    at: tuple[datetime, ...]


def hours(span: ForecastSpan) -> tuple[Hour, ...]:
    """Return the hours of the local days that ``span`` touches, those without a minute of it
    included.
    """
    spans: dict[tuple[date, int], tuple[int, int]] = {}
    first, minutes = span.first_minute, span.minutes
    for start, end, utc_offset in slots.offsets(zone(span.timezone), first, first + minutes):
        local = start + utc_offset
        while start < end:
            following = min(end, start + 60 - local % 60)
            wall = slots.LOCAL_EPOCH + local * MINUTE
            before = spans.get((wall.date(), wall.hour), (start, start))
            spans[wall.date(), wall.hour] = (before[0], following)
            local, start = local + following - start, following
    day, last = min(spans)[0], max(spans)[0]
    hours = []
    while True:
        for hour in range(24):
            low, high = spans.get((day, hour), (first, first))
            hours.append(Hour(day, hour, low - first, high - first))
        if day == last:
            return tuple(hours)
        day += timedelta(days=1)


@dataclass(frozen=True)
class Forecast:
    """The starts of jobs in a span: ``names`` has the names of those that start in each minute."""

    span: ForecastSpan
    names: Sequence[Sequence[str]]

    @cached_property
    def hours(self) -> tuple[Hour, ...]:
        return hours(self.span)

    @cached_property
    def jobs_by_minute(self) -> list[int]:
        """How many jobs start in each minute."""
        return list(map(len, self.names))

    @cached_property
    def jobs_by_hour(self) -> list[int]:
        """How many jobs start in each hour."""
        return [len(self.jobs(nth)) for nth in range(len(self.hours))]

    def jobs(self, hour: int) -> list[str]:
        """Return the names of the jobs that start in an hour, which is given by its place in
        ``hours``.
        """
        chosen = self.hours[hour]
        return sorted(set(chain.from_iterable(self.names[chosen.start : chosen.end])))

    def pile_ups(self) -> int:
        """Return how many groups of minutes are pile-ups: those of one clock time and jobs are
        one.
        """
        return sum(len(names) >= MIN_PILE_UP_JOBS for (_, names), _ in self._together)

    def fullest(self, limit: int) -> list[PileUp]:
        """Return the minutes in which most jobs start, two at least: by clock time and the jobs
        that start.
        """
        return [
            PileUp(clock, names, tuple(map(self.span.instant, minutes)))
            for (clock, names), minutes in self._together[:limit]
        ]

    def names_at(self, minute: int) -> tuple[str, ...]:
        """Return the names of the jobs that start in a minute."""
        return tuple(sorted(self.names[minute]))

    @cached_property
    def _together(self) -> list[tuple[tuple[str, tuple[str, ...]], list[int]]]:
        """The minutes in which the same jobs start, two at least, at one clock time; first those
        with most jobs.
        """
        together: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
        for minute, clock in enumerate(_clocks(self.span)):
            if len(self.names[minute]) > 1:
                together[clock, self.names_at(minute)].append(minute)

        def order(entry: tuple[tuple[str, tuple[str, ...]], list[int]]) -> tuple[Any, ...]:
            (clock, names), minutes = entry
            return -len(names), -len(minutes), clock, minutes

        return sorted(together.items(), key=order)


def forecast(
    jobs: Iterable[ScheduledJob], span: ForecastSpan, now: datetime | None = None
) -> Forecast:
    """Return when ``jobs`` start in ``span``; with ``now``, in the minutes after it only."""
    passed = max(0, (now - EPOCH) // MINUTE + 1 - span.first_minute) if now else 0
    names = list(_starts(tuple(jobs), span))
    names[:passed] = [[]] * len(names[:passed])
    return Forecast(span, names)


@lru_cache(maxsize=8)
def _starts(jobs: tuple[ScheduledJob, ...], span: ForecastSpan) -> list[list[str]]:
    """Return the names of the jobs that start in each minute; a page of the web asks each time."""
    names: list[list[str]] = [[] for _ in range(span.minutes)]
    for job in jobs:
        for minute in start_minutes(job, span):
            names[minute - span.first_minute].append(job.name)
    return names


def start_minutes(job: ScheduledJob, span: ForecastSpan) -> Iterator[int]:
    """Yield the minutes, since 1970, of the starts of a job in ``span``."""
    cron, where = without_skipped(job.cron, job.skip_on, job.only_on), zone(job.timezone)
    earliest = span.after - job.offset
    if job.not_before is not None:
        earliest = max(earliest, job.not_before)
    if not job.offset:
        yield from slots.slot_minutes(cron, where, earliest, span.until)
        return
    for slot in slots.slots(cron, where, earliest, span.until):
        start = run_at(job.offset, cron, where, slot.at)
        if span.after < start <= span.until:
            yield (start - EPOCH) // MINUTE


def _clocks(span: ForecastSpan) -> list[str]:
    """Return what a clock in the zone of the span shows at each minute."""
    clocks: list[str] = []
    first = span.first_minute
    for start, end, utc_offset in slots.offsets(zone(span.timezone), first, first + span.minutes):
        of_day = ((minute + utc_offset) % 1440 for minute in range(start, end))
        clocks += [f"{minute // 60:02}:{minute % 60:02}" for minute in of_day]
    return clocks
