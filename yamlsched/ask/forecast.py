"""How many jobs start in each hour and each minute of a span, and which start together."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from yamlsched.timetable import slots
from yamlsched.timetable.cron import Cron, without_skipped
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
    where = zone(span.timezone)
    first, last = (
        span.instant(minute).astimezone(where).date() for minute in (0, span.minutes - 1)
    )
    days = (first + timedelta(days=n) for n in range((last - first).days + 1))
    clock = [(day, hour) for day in days for hour in range(24)]

    def start(day: date, hour: int) -> int:
        at = datetime.combine(day, time(hour), where)
        return min(max((at - EPOCH) // MINUTE - span.first_minute, 0), span.minutes)

    # hours that clocks skip start when the first that they do not skip does
    backwards = accumulate(
        (start(*of_day) for of_day in reversed(clock)), min, initial=span.minutes
    )
    starts = [*backwards][::-1]
    return tuple(Hour(*of_day, *ends) for of_day, ends in zip(clock, pairwise(starts), strict=True))


@dataclass(frozen=True, eq=False)
class JobGroup:
    """Jobs that start at the same minutes, which are counted from the start of the span."""

    names: list[str]
    minutes: Sequence[int]


@dataclass(frozen=True)
class Forecast:
    """The starts of jobs in a span."""

    span: ForecastSpan
    groups: Sequence[JobGroup]

    @cached_property
    def hours(self) -> tuple[Hour, ...]:
        return hours(self.span)

    @cached_property
    def groups_at(self) -> list[list[JobGroup]]:
        """What starts in each minute."""
        groups_at: list[list[JobGroup]] = [[] for _ in range(self.span.minutes)]
        for group in self.groups:
            for minute in group.minutes:
                groups_at[minute].append(group)
        return groups_at

    @cached_property
    def jobs_by_minute(self) -> list[int]:
        """How many jobs start in each minute."""
        return [sum(len(group.names) for group in groups) for groups in self.groups_at]

    @cached_property
    def jobs_by_hour(self) -> list[int]:
        """How many jobs start in each hour."""
        return [sum(len(group.names) for group in self._groups_of(hour)) for hour in self.hours]

    def jobs(self, hour: int) -> list[str]:
        """Return the names of the jobs that start in an hour, which is given by its place in
        ``hours``.
        """
        return sorted(name for group in self._groups_of(self.hours[hour]) for name in group.names)

    def _groups_of(self, hour: Hour) -> Collection[JobGroup]:
        minutes = self.groups_at[hour.start : hour.end]
        return {group for groups in minutes for group in groups}

    def pile_ups(self) -> int:
        """Return how many groups of minutes are pile-ups: those of one clock time and jobs are
        one.
        """
        return sum(jobs >= MIN_PILE_UP_JOBS for jobs, _, _ in self._together)

    def fullest(self, limit: int) -> list[PileUp]:
        """Return the minutes in which most jobs start, two at least: by clock time and the jobs
        that start.
        """
        return [
            PileUp(clock, self.names_at(minutes[0]), tuple(map(self.span.instant, minutes)))
            for _, clock, minutes in self._together[:limit]
        ]

    def names_at(self, minute: int) -> tuple[str, ...]:
        """Return the names of the jobs that start in a minute."""
        return tuple(sorted(name for group in self.groups_at[minute] for name in group.names))

    @cached_property
    def _together(self) -> list[tuple[int, str, list[int]]]:
        """The minutes in which the same jobs start, two at least, at one clock time; first those
        with most jobs.
        """
        together: defaultdict[tuple[str, tuple[JobGroup, ...]], list[int]] = defaultdict(list)
        where = zone(self.span.timezone)
        for minute, groups in enumerate(self.groups_at):
            if self.jobs_by_minute[minute] > 1:
                clock = f"{self.span.instant(minute).astimezone(where):%H:%M}"
                together[clock, tuple(groups)].append(minute)
        starts = [
            (self.jobs_by_minute[minutes[0]], clock, minutes)
            for (clock, _), minutes in together.items()
        ]
        return sorted(starts, key=lambda start: (-start[0], -len(start[2]), start[1], start[2]))


def forecast(
    jobs: Iterable[ScheduledJob], span: ForecastSpan, now: datetime | None = None
) -> Forecast:
    """Return when ``jobs`` start in ``span``; with ``now``, in the minutes after it only."""
    passed = max(0, (now - EPOCH) // MINUTE + 1 - span.first_minute) if now else 0
    groups = _starts(tuple(jobs), span)
    coming = [
        JobGroup(group.names, group.minutes[bisect_left(group.minutes, passed) :])
        for group in groups
    ]
    return Forecast(span, [group for group in coming if group.minutes])


@lru_cache(maxsize=8)
def _starts(jobs: tuple[ScheduledJob, ...], span: ForecastSpan) -> list[JobGroup]:
    """Return the starts of jobs, grouped by what determines them."""
    names: defaultdict[tuple[Cron, str, timedelta, datetime | None], list[str]] = defaultdict(list)
    for job in jobs:
        cron = without_skipped(job.cron, job.skip_on, job.only_on)
        names[cron, job.timezone, job.offset, job.not_before].append(job.name)
    return [
        JobGroup(
            alike,
            [
                minute - span.first_minute
                for minute in start_minutes(*rule[:3], span.after, span.until, rule[3])
            ],
        )
        for rule, alike in names.items()
    ]


def start_minutes(
    cron: Cron,
    timezone: str,
    shift: timedelta,
    after: datetime,
    until: datetime,
    not_before: datetime | None = None,
) -> Iterator[int]:
    """Yield the minutes, since 1970, of the starts in (after, until] of a job whose runs ``spread``
    moves by ``shift``.

    Slots up to ``not_before`` have no runs.
    """
    where, earliest = zone(timezone), after - shift
    if not_before is not None:
        earliest = max(earliest, not_before)
    if not shift:
        yield from slots.slot_minutes(cron, where, earliest, until)
        return
    for slot in slots.slots(cron, where, earliest, until):
        start = run_at(shift, cron, where, slot.at)
        if after < start <= until:
            yield (start - EPOCH) // MINUTE
