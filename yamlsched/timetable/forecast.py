"""How many jobs start in each hour and each minute of a span. Pure.

The starts of a job are the bits of a number, one bit for each minute. So a job that starts every minute costs as much
as a daily one, and many jobs are added up without visiting their slots one by one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched.errors import Refused
from yamlsched.text import join_first
from yamlsched.timetable import slots, zones
from yamlsched.timetable.calendars import Calendars, skipped_by, without_skipped
from yamlsched.timetable.cron import Cron, parse_cron
from yamlsched.timetable.keys import SECOND, run_at, slot_key
from yamlsched.timetable.slots import EPOCH, MINUTE
from yamlsched.timetable.zones import zone

HORIZON = timedelta(days=366 * 50)
MAX_NAMES = 8
"""Jobs that a note names."""


class ScheduledJob(NamedTuple):
    """All that determines the slots of a job and their keys. ``offset`` is by how much ``spread`` moves their runs.

    Slots up to ``not_before`` do not count, and those that calendars skip have no runs. Each waits for slots of the
    jobs ``after``.
    """

    name: str
    cron: Cron
    timezone: str
    offset: timedelta = timedelta(0)
    not_before: datetime | None = None
    after: tuple[str, ...] = ()
    skip_on: Calendars = ()
    only_on: Calendars = ()


class Upcoming(NamedTuple):
    """A future slot. ``local`` is aware, on the job's wall clock. ``run_at`` is when its run is due: see ``spread``."""

    job_type: str
    scheduled_for: datetime
    local: datetime
    run_at: datetime
    key: str
    note: str


def next_slot(cron: str, zone: str | ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after ``after`` at which a cron expression fires, in UTC; None if there is none.

    ``zone`` is the time zone whose wall clock the expression uses: an IANA name, read from the data of the ``tzdata``
    package, or a ZoneInfo. ``after`` is an aware datetime. Clock changes are handled as for jobs: see docs/time.md.

    >>> from datetime import UTC
    >>> next_slot("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC))
    datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.timezone.utc)

    Raises CronError for an expression, and ScheduleError for a time zone, that is not supported; Refused if ``after``
    has no time zone.
    """
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise Refused(f"after is {after!r:.100}: pass an aware datetime, for example datetime.now(UTC)")
    where = zone if isinstance(zone, ZoneInfo) else zones.zone(zone)
    found = slots.next_slot(parse_cron(cron), where, after)
    return found.at if found else None


def merge(jobs: Iterable[ScheduledJob], after: datetime, until: datetime | None = None) -> Iterator[Upcoming]:
    """Yield the slots of jobs in (after, until], by time and then by name."""
    return heapq.merge(*(_upcoming(job, after, until) for job in jobs), key=attrgetter("scheduled_for", "job_type"))


def starts(job: ScheduledJob, after: datetime, until: datetime) -> Iterator[Upcoming]:
    """Yield the slots of a job whose runs are due in (after, until]."""
    fires = without_skipped(job.cron, job.skip_on, job.only_on)
    found = _upcoming(job._replace(cron=fires), after - job.offset, until)
    return (slot for slot in found if after < slot.run_at <= until)


def _upcoming(job: ScheduledJob, after: datetime, until: datetime | None) -> Iterator[Upcoming]:
    where = zones.zone(job.timezone)
    after = after if job.not_before is None else max(after, job.not_before)
    for slot in slots.slots(job.cron, where, after, until or after + HORIZON):
        due, notes = slot.at, [slot.note] if slot.note else []
        if job.offset:
            due = run_at(job.offset, job.cron, where, slot.at)
            notes.append(f"starts {due.astimezone(where):%a %H:%M:%S} (spread)")
        if skipped := skipped_by(job.skip_on, job.only_on, slot.nominal.date()):
            notes.append(f"skipped: {skipped}")
        if job.after:
            notes.append(f"after {join_first(job.after, MAX_NAMES)}")
        key = slot_key(job.name, job.cron, slot)
        yield Upcoming(job.name, slot.at, slot.at.astimezone(where), due, key, "; ".join(notes))


MIN_PILE_UP_JOBS = 5
"""Jobs that start in one minute are a pile-up from this number on."""
MAX_GROUPS = 16384
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
    """An hour of a local day, and the minutes [start, end) of the span that it has: none if clocks skip it."""

    date: date
    hour: int
    start: int
    end: int


class PileUp(NamedTuple):
    """Jobs that start together at ``clock``, a local time, at each of the instants ``at``."""

    clock: str
    names: tuple[str, ...]
    at: tuple[datetime, ...]


@lru_cache(maxsize=64)
def hours(span: ForecastSpan) -> tuple[Hour, ...]:
    """Return the hours of the local days that ``span`` touches, those without a minute of it included."""
    found: dict[tuple[date, int], tuple[int, int]] = {}
    first, minutes = span.first_minute, span.minutes
    for start, end, utc_offset in slots.offsets(zone(span.timezone), first, first + minutes):
        local = start + utc_offset
        while start < end:
            following = min(end, start + 60 - local % 60)
            wall = slots.LOCAL_EPOCH + local * MINUTE
            before = found.get((wall.date(), wall.hour), (start, start))
            found[wall.date(), wall.hour] = (before[0], following)
            local, start = local + following - start, following
    day, last = min(found)[0], max(found)[0]
    hours = []
    while True:
        for hour in range(24):
            low, high = found.get((day, hour), (first, first))
            hours.append(Hour(day, hour, low - first, high - first))
        if day == last:
            return tuple(hours)
        day += timedelta(days=1)


@dataclass(frozen=True)
class JobGroup:
    """Jobs that start at the same minutes, with a bit for each minute of the span, and one for each of its hours."""

    names: list[str]
    minutes: int
    hours: int


@dataclass(frozen=True)
class Forecast:
    """The starts of jobs in a span."""

    span: ForecastSpan
    groups: Sequence[JobGroup]

    @cached_property
    def hours(self) -> tuple[Hour, ...]:
        return hours(self.span)

    @cached_property
    def jobs_by_hour(self) -> list[int]:
        """How many jobs start in each hour."""
        return _add_up([(group.hours, len(group.names)) for group in self.groups], len(self.hours))

    @cached_property
    def jobs_by_minute(self) -> list[int]:
        """How many jobs start in each minute."""
        return _add_up([(group.minutes, len(group.names)) for group in self.groups], self.span.minutes)

    def jobs(self, hour: int) -> list[str]:
        """Return the names of the jobs that start in an hour, which is given by its place in ``hours``."""
        return sorted(name for group in self.groups if group.hours >> hour & 1 for name in group.names)

    def pile_ups(self, min_jobs: int = MIN_PILE_UP_JOBS) -> int:
        """Return how many groups of minutes have at least this many jobs: those of one clock time count as one."""
        return sum(count >= min_jobs for _, count in self._candidates)

    def fullest(self, limit: int) -> list[PileUp]:
        """Return the minutes in which most jobs start, two at least: by clock time and the jobs that start."""
        found: list[PileUp] = []
        for clock, count in self._ranked:
            if len(found) >= limit:
                break
            found += self._split(clock, self._candidates[clock, count])
        found.sort(key=lambda one: (-len(one.names), -len(one.at), one.clock, one.names))
        return found[:limit]

    @cached_property
    def _candidates(self) -> dict[tuple[str, int], list[int]]:
        """The minutes in which two or more jobs start, by clock time and number of jobs."""
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        clocks = _clocks(self.span)
        for minute, count in enumerate(self.jobs_by_minute):
            if count > 1:
                found[clocks[minute], count].append(minute)
        return found

    @property
    def _ranked(self) -> list[tuple[str, int]]:
        return sorted(self._candidates, key=lambda one: (-one[1], -len(self._candidates[one]), one[0]))

    def _split(self, clock: str, minutes: list[int]) -> Iterator[PileUp]:
        """Yield the minutes, all of which have equally many jobs, by the jobs that start."""
        while minutes:
            hour, bit = 1 << _places(self.span)[minutes[0]], 1 << minutes[0]
            groups = [group for group in self.groups if group.hours & hour and group.minutes & bit]
            alike = [minute for minute in minutes if all(group.minutes >> minute & 1 for group in groups)]
            names = tuple(sorted(name for group in groups for name in group.names))
            yield PileUp(clock, names, tuple(map(self.span.instant, alike)))
            minutes = [minute for minute in minutes if minute not in alike]


def forecast(jobs: Iterable[ScheduledJob], span: ForecastSpan, now: datetime | None = None) -> Forecast:
    """Return when ``jobs`` start in ``span``; with ``now``, in the minutes after it only."""
    names: defaultdict[tuple[Cron, str, timedelta, datetime | None], list[str]] = defaultdict(list)
    for job in jobs:
        names[without_skipped(job.cron, job.skip_on, job.only_on), job.timezone, job.offset, job.not_before].append(
            job.name
        )
    passed = max(0, (now - EPOCH) // MINUTE + 1 - span.first_minute) if now else 0
    groups = []
    for key, alike in names.items():
        minutes, in_hours = _without(passed, span, *_starts(span, *key)) if passed else _starts(span, *key)
        if minutes:
            groups.append(JobGroup(alike, minutes, in_hours))
    return Forecast(span, groups)


@lru_cache(maxsize=MAX_GROUPS)
def _starts(
    span: ForecastSpan, cron: Cron, timezone: str, shift: timedelta, not_before: datetime | None
) -> tuple[int, int]:
    """Return the starts of a job as bits: its minutes, and its hours."""
    bits, in_hours, places = bytearray(span.minutes // 8 + 1), 0, _places(span)
    for minute in start_minutes(cron, timezone, shift, span.after, span.until, not_before):
        place = minute - span.first_minute
        bits[place >> 3] |= 1 << (place & 7)
        in_hours |= 1 << places[place]
    return int.from_bytes(bits, "little"), in_hours


def start_minutes(
    cron: Cron,
    timezone: str,
    shift: timedelta,
    after: datetime,
    until: datetime,
    not_before: datetime | None = None,
) -> Iterator[int]:
    """Yield the minutes, since 1970, of the starts in (after, until] of a job whose runs ``spread`` moves by ``shift``.

    Slots up to ``not_before`` have no runs. A run starts before the next slot, as in ``spread.run_at``.
    """
    where = zone(timezone)
    earliest = after if not_before is None else max(after, not_before)
    if not shift:
        yield from slots.slot_minutes(cron, where, earliest, until)
        return
    earliest = after - shift if not_before is None else max(after - shift, not_before)
    found = slots.slot_minutes(cron, where, earliest, until + shift)
    # whole seconds since 1970: those that are after `after`, and not after `until`
    first, end, seconds = ((at - EPOCH) // SECOND for at in (after + SECOND, until, EPOCH + shift))
    slot = next(found, None)
    while slot is not None:
        following = next(found, None)
        start = slot * 60 + seconds
        if following is not None:
            start = min(start, following * 60 - 1)
        if start > end:
            return
        if start >= first:
            yield start // 60
        slot = following


@lru_cache(maxsize=64)
def _places(span: ForecastSpan) -> list[int]:
    """Return the place of the hour of each minute."""
    places = [0] * span.minutes
    for nth, hour in enumerate(hours(span)):
        places[hour.start : hour.end] = [nth] * (hour.end - hour.start)
    return places


@lru_cache(maxsize=64)
def _clocks(span: ForecastSpan) -> list[str]:
    """Return what a clock in the zone of the span shows at each minute."""
    clocks: list[str] = []
    first = span.first_minute
    for start, end, utc_offset in slots.offsets(zone(span.timezone), first, first + span.minutes):
        of_day = ((minute + utc_offset) % 1440 for minute in range(start, end))
        clocks += [f"{minute // 60:02}:{minute % 60:02}" for minute in of_day]
    return clocks


def _without(passed: int, span: ForecastSpan, minutes: int, in_hours: int) -> tuple[int, int]:
    """Return the bits without the first minutes, which have passed."""
    if passed >= span.minutes:
        return 0, 0
    minutes = minutes >> passed << passed
    nth = _places(span)[passed]
    current = hours(span)[nth]
    in_hours = in_hours >> nth << nth
    if in_hours >> nth & 1 and not minutes & ((1 << current.end) - 1):
        in_hours ^= 1 << nth
    return minutes, in_hours


def _add_up(numbers: Iterable[tuple[int, int]], width: int) -> list[int]:
    """Return for each bit the sum of the weights of the numbers that have it.

    Digit ``n`` of all sums together is one number, so that adding takes a few operations for all bits at once.

    >>> _add_up([(0b011, 1), (0b001, 5)], 3)
    [6, 1, 0]
    """
    digits: list[int] = []
    for number, weight in numbers:
        for place in range(weight.bit_length()):
            if weight >> place & 1:
                _add(digits, number, place)
    rows = [f"{digit:0{width}b}" for digit in reversed(digits)]
    return [int("".join(row), 2) for row in zip(*rows, strict=True)][::-1] if rows else [0] * width


def _add(digits: list[int], carry: int, place: int) -> None:
    while carry:
        while place >= len(digits):
            digits.append(0)
        digits[place], carry = digits[place] ^ carry, digits[place] & carry
        place += 1
