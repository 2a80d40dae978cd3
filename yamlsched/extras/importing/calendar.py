"""When the source's own scheduler would start a job: an independent reading of its rules, to check
ours against.

Nothing here uses croniter or the package's own ``cron`` and ``slots``: two readings that agree are
evidence.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

EPOCH, MINUTE = datetime(1970, 1, 1, tzinfo=UTC), timedelta(minutes=1)
FIRST_DAY = date(1970, 1, 1).toordinal()
DAY = 1440
MAX_SHIFT = 180


class Clock(NamedTuple):
    """What a scheduler does around a clock change."""

    gap: str
    """With times that the clock skips: "none" does not fire, "after" fires once at the end of the
    gap.
    """
    repeats: bool
    """Whether a time that the clock repeats fires twice."""


EVERY_MATCH = Clock("none", True)  # Go's robfig/cron; Debian's cron if minute or hour starts with *
DEBIAN = Clock("after", False)
SYSTEMD = Clock("none", False)


class Fields(NamedTuple):
    """The fields of a schedule as sets of numbers. Weekdays count from Sunday = 0; the last day of
    the month is -1.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]


@dataclass(frozen=True, slots=True)
class OnCalendar:
    """A schedule on the clock of a time zone.

    ``either_day``: a date matches if its day of the month or its weekday does; else both must.
    ``is_vague`` says that what the source does around clock changes is undefined, so that it is not
    compared there.
    """

    fields: Fields
    zone: ZoneInfo
    clock: Clock
    either_day: bool = False
    is_vague: bool = False

    def fires(self, start: datetime, end: datetime) -> set[int]:
        """Return the instants in [start, end), in minutes since 1970."""
        instants: set[int] = set()
        reached: int | None = None  # the local minute up to which the clock has counted
        for stretch in stretches(self.zone, start, end):
            first, last = stretch.start + stretch.offset, stretch.end + stretch.offset
            if reached is not None and 0 < first - reached < MAX_SHIFT:
                skipped = self._local(reached, first)
                if self.clock.gap == "after" and skipped:
                    instants.add(stretch.start)
            elif reached is not None and not self.clock.repeats and reached - first < MAX_SHIFT:
                first = max(first, reached)
            instants.update(local - stretch.offset for local in self._local(first, last))
            reached = max(last, reached or last)
        return instants

    def _local(self, start: int, end: int) -> list[int]:
        """Return the matching local minutes in [start, end)."""
        times = [
            hour * 60 + minute
            for hour in sorted(self.fields.hours)
            for minute in sorted(self.fields.minutes)
        ]
        matching: list[int] = []
        for day in range(start // DAY, -(-end // DAY)):
            if self._matches(date.fromordinal(day + FIRST_DAY)):
                minutes = [day * DAY + time for time in times]
                is_whole = start <= day * DAY and (day + 1) * DAY <= end
                matching += (
                    minutes if is_whole else [minute for minute in minutes if start <= minute < end]
                )
        return matching

    def _matches(self, day: date) -> bool:
        if day.month not in self.fields.months:
            return False
        back = day.day - monthrange(day.year, day.month)[1] - 1
        on_day = day.day in self.fields.days or back in self.fields.days
        on_weekday = day.isoweekday() % 7 in self.fields.weekdays
        return on_day or on_weekday if self.either_day else on_day and on_weekday


class OffsetPeriod(NamedTuple):
    """UTC minutes [start, end) during which local time is UTC + offset."""

    start: int
    end: int
    offset: int


def stretches(zone: ZoneInfo, start: datetime, end: datetime) -> tuple[OffsetPeriod, ...]:
    """Return the spans of constant offset of ``zone`` between two aware instants."""
    periods: list[OffsetPeriod] = []
    at, last = minute_of(start), minute_of(end)
    while at < last:
        offset, until = _offset(zone, at), min(at + DAY, last)
        if _offset(zone, until) != offset:
            low = at
            while until - low > 1:
                middle = (low + until) // 2
                low, until = (middle, until) if _offset(zone, middle) == offset else (low, middle)
        begin = periods.pop().start if periods and periods[-1].offset == offset else at
        periods.append(OffsetPeriod(begin, until, offset))
        at = until
    return tuple(periods)


def minute_of(instant: datetime) -> int:
    """Return an aware time in minutes since 1970, rounded down."""
    return (instant - EPOCH) // MINUTE


def _offset(zone: ZoneInfo, minute: int) -> int:
    offset = (EPOCH + minute * MINUTE).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // MINUTE
