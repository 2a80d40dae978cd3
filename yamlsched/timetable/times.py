"""Instants and local times: how they are written and read everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched import durations

MIN_YEAR, MAX_YEAR = 1900, 9900
"""Outside of these years another zone, or a search for the next slot, could leave the range of
datetime.
"""
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SECOND = timedelta(seconds=1)
RELATIVE_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
FORMS = (
    "a date such as 2026-01-14, a local time such as 2026-01-14T02:00, an instant such as"
    ' 2026-01-14T01:00Z, a time of day such as 17:30, a day such as tomorrow, "tomorrow 08:00" or'
    ' "mon 08:00", a duration such as 90m, or now'
)
"""The forms that ``parse`` accepts, as errors list them."""
MAX_DURATION = timedelta(days=36_525)
"""The longest duration from or to now, so that adding it never overflows."""


class NamedDay(NamedTuple):
    """A day by its name, of ``RELATIVE_DAYS`` or ``WEEKDAYS``, and a time of day; without one, all
    of the day.
    """

    name: str
    clock: time | None = None


TimeInput = date | datetime | time | timedelta | NamedDay
"""A date or time without an offset is local: it is read on the wall clock of a time zone that is
known later.
"""


def rfc3339(instant: datetime, timespec: str = "auto") -> str:
    """Return an aware ``instant`` in UTC with a ``Z``; ``timespec`` is that of
    ``datetime.isoformat``.

    >>> rfc3339(datetime(2026, 1, 14, 2, tzinfo=UTC), "minutes")
    '2026-01-14T02:00Z'
    """
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def short_utc(instant: datetime) -> str:
    """Return ``rfc3339`` for people: without seconds if they are zero, and never with fractions."""
    return rfc3339(instant, "seconds" if instant.second or instant.microsecond else "minutes")


def local_time(instant: datetime, zone: ZoneInfo) -> str:
    """Return an instant on the wall clock of ``zone``, with its weekday and the abbreviation of the
    zone.
    """
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def parse(text: str) -> TimeInput:
    """Parse a time as the command line accepts it: a date or time, a time of day, a named day, or a
    duration.

    >>> parse("2026-01-14"), parse("17:30"), parse("90m")
    (datetime.date(2026, 1, 14), datetime.time(17, 30), datetime.timedelta(seconds=5400))
    >>> parse("03:41Z")
    datetime.time(3, 41, tzinfo=datetime.timezone.utc)
    >>> parse("2026-01-14T02:00"), parse("2026-01-14T01:00Z").tzinfo
    (datetime.datetime(2026, 1, 14, 2, 0), datetime.timezone.utc)
    >>> parse("mon 8:00"), parse("tomorrow")
    (NamedDay(name='monday', clock=datetime.time(8, 0)), NamedDay(name='tomorrow', clock=None))

    Raises ValueError with a message that says what to write.
    """
    words = text.lower().split()
    if words == ["now"]:
        return timedelta(0)
    if re.fullmatch(r"[0-9dhms]+", text):
        duration = durations.parse(text)
        if duration > MAX_DURATION:
            raise ValueError(
                f"{text} is longer than 100 years: write a time such as 2026-01-14T02:00Z"
            )
        return duration
    clocks = [word for word in words if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?z?", word)]
    days = list(filter(None, map(_day_name, words)))
    is_instant = bool(clocks) and clocks[0].endswith("z")
    if (
        words
        and len(words) == len(clocks) + len(days)
        and len(clocks) <= 1
        and len(days) <= 1 - is_instant
    ):
        clock = _time_of_day(clocks[0]) if clocks else None
        return NamedDay(days[0], clock) if days else clock  # type: ignore[return-value]
    try:
        value = (
            date.fromisoformat(text)
            if len(text) == 10
            else datetime.fromisoformat(text.replace("z", "Z"))
        )
    except ValueError:
        raise ValueError(f'"{text}" is not a valid time: write {FORMS}') from None
    if not MIN_YEAR <= value.year <= MAX_YEAR:
        raise ValueError(f'"{text}" is out of range: write a year from {MIN_YEAR} to {MAX_YEAR}')
    return value


def _day_name(word: str) -> str | None:
    """Return the name of a day that may be abbreviated: mon, tues, thursday."""
    if word in RELATIVE_DAYS:
        return word
    return next((name for name in WEEKDAYS if len(word) >= 3 and name.startswith(word)), None)


def _time_of_day(text: str) -> time:
    clock = text.removesuffix("z")
    try:
        value = time.fromisoformat(clock.zfill(5) if len(clock) < 6 else clock.zfill(8))
    except ValueError:
        raise ValueError(f'"{text}" is not a valid time of day: write 00:00 to 23:59') from None
    return value.replace(tzinfo=UTC) if text.endswith("z") else value


def is_local(value: TimeInput) -> bool:
    """Return whether a time depends on a time zone."""
    return not isinstance(value, timedelta) and getattr(value, "tzinfo", None) is None


def anchor(
    value: TimeInput, zone: Callable[[], ZoneInfo], now: datetime, is_future: bool
) -> date | datetime:
    """Return what a value means at ``now``: an instant, a local time, or a local date.

    ``is_future`` decides whether durations, times of day and weekdays count ahead or back: to the
    first one after ``now``, or to the last one up to it. ``zone`` is called only if the value
    depends on it.
    """
    if isinstance(value, timedelta):
        return now + value if is_future else now - value
    if not isinstance(value, time | NamedDay):
        return value
    name, clock = (None, value) if isinstance(value, time) else value
    where = zone() if clock is None or clock.tzinfo is None else UTC
    today = now.astimezone(where).date()
    if name in RELATIVE_DAYS:
        day = today + timedelta(days=RELATIVE_DAYS[name])
        return day if clock is None else datetime.combine(day, clock)
    days = [today + timedelta(days=days) for days in range(-8, 9)]
    if name is not None:
        days = [day for day in days if day.weekday() == WEEKDAYS.index(name)]
    if clock is None:
        if is_future:
            return min(day for day in days if day > today)
        return max(day for day in days if day <= today)
    times = [_to_utc(datetime.combine(day, clock), where) for day in days]
    if is_future:
        return min(at for at in times if at > now)
    return max(at for at in times if at <= now)


def resolve(
    value: TimeInput, zone: Callable[[], ZoneInfo], now: datetime, is_future: bool
) -> datetime:
    """Return the instant that a time means at ``now``, in UTC; of a date its first.
    See ``anchor``.
    """
    moment = anchor(value, zone, now, is_future)
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC)
    return bounds(moment, zone())[0]


def bounds(when: date | datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first and the last instant of ``when``: equal for a time, a whole local day for a
    date.

    A naive time is read on the wall clock of ``zone`` as slots are: if clocks show it twice, it is
    the first time; if they skip it, it is the first instant after the gap. See docs/time.md.
    """
    if isinstance(when, datetime):
        return (_to_utc(when, zone),) * 2
    midnight = datetime.combine(when, time.min)
    return _to_utc(midnight, zone), _to_utc(midnight + timedelta(days=1), zone) - timedelta(
        microseconds=1
    )


def _to_utc(instant: datetime, zone: tzinfo) -> datetime:
    if instant.tzinfo:
        return instant.astimezone(UTC)
    first = instant.replace(tzinfo=zone).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == instant:
        return first
    # in a gap: `first` is after the clock change, and `before` before it. (The clock changes of
    # slots.py are not asked: with them, each tick would import croniter.)
    before = instant.replace(tzinfo=zone, fold=1, microsecond=0).astimezone(UTC)
    offset = first.astimezone(zone).utcoffset()
    while before.astimezone(zone).utcoffset() != offset:
        before += SECOND
    return before


def show(at: datetime, zone: ZoneInfo) -> str:
    """Return an instant in UTC and in local time, as answers show how a time was read."""
    return f"{short_utc(at)} ({local_time(at, zone)})"
