"""Instants and local times: how they are written and read everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from yamlsched import durations

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MIN_YEAR, MAX_YEAR = 1900, 9900
"""Outside of these years another zone, or a search for the next slot, could leave the range of datetime."""
TimeInput = date | datetime | time | timedelta
"""A date or time without an offset is local: it is read on the wall clock of a time zone that is known later."""
MAX_DURATION = timedelta(days=36_525)
"""The longest duration from or to now, so that adding it never overflows."""


def rfc3339(instant: datetime, timespec: str = "auto") -> str:
    """Return an aware ``instant`` in UTC with a ``Z``; ``timespec`` is that of ``datetime.isoformat``.

    >>> rfc3339(datetime(2026, 1, 14, 2, tzinfo=UTC)), rfc3339(datetime(2026, 1, 14, 2, tzinfo=UTC), "minutes")
    ('2026-01-14T02:00:00Z', '2026-01-14T02:00Z')
    """
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def short_utc(instant: datetime) -> str:
    """Return ``rfc3339`` for people: without seconds if they are zero, and never with fractions."""
    return rfc3339(instant, "seconds" if instant.second or instant.microsecond else "minutes")


def local_time(instant: datetime, zone: ZoneInfo) -> str:
    """Return an instant on the wall clock of ``zone``, with its weekday and the abbreviation of the zone."""
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def parse(text: str) -> TimeInput:
    """Parse a time as the command line accepts it: a date, a local time, an instant, a time of day, or a duration.

    >>> parse("2026-01-14"), parse("17:30"), parse("90m"), parse("now")
    (datetime.date(2026, 1, 14), datetime.time(17, 30), datetime.timedelta(seconds=5400), datetime.timedelta(0))
    >>> parse("2026-01-14T02:00"), parse("2026-01-14T01:00Z").tzinfo
    (datetime.datetime(2026, 1, 14, 2, 0), datetime.timezone.utc)

    Raises ValueError with a message that says what to write.
    """
    if text == "now":
        return timedelta(0)
    if re.fullmatch(r"[0-9dhms]+", text):
        duration = durations.parse(text)
        if duration > MAX_DURATION:
            raise ValueError(f"{text} is longer than 100 years: write a time such as 2026-01-14T02:00Z")
        return duration
    is_time_of_day = re.fullmatch(r"[0-9]{2}:[0-9]{2}", text)
    try:
        if is_time_of_day:
            return time.fromisoformat(text)
        found = date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        if is_time_of_day:
            raise ValueError(f'"{text}" is not a valid time of day: write 00:00 to 23:59') from None
        raise ValueError(
            f'"{text}" is not a valid time: write a date such as 2026-01-14, a local time such as 2026-01-14T02:00, '
            "an instant such as 2026-01-14T01:00Z, a time of day such as 17:30, or a duration such as 90m"
        ) from None
    if not MIN_YEAR <= found.year <= MAX_YEAR:
        raise ValueError(f'"{text}" is out of range: write a year from {MIN_YEAR} to {MAX_YEAR}')
    return found


def is_local(value: TimeInput) -> bool:
    """Return whether a time depends on a time zone."""
    return not isinstance(value, timedelta) and getattr(value, "tzinfo", None) is None


def anchor(value: TimeInput, zone: Callable[[], ZoneInfo], now: datetime, is_future: bool) -> date | datetime:
    """Return a duration or a time of day as the instant that it means at ``now``, and anything else unchanged.

    ``is_future`` decides whether both count ahead or back. ``zone`` is called only if the value depends on it.
    """
    if isinstance(value, timedelta):
        return now + value if is_future else now - value
    if isinstance(value, time):
        return (next_occurrence if is_future else last_occurrence)(value, zone(), now)
    return value


def resolve(value: TimeInput, zone: Callable[[], ZoneInfo], now: datetime, is_future: bool) -> datetime:
    """Return the instant that a time means at ``now``, in UTC; of a date its first. See ``anchor``."""
    found = anchor(value, zone, now, is_future)
    if isinstance(found, datetime) and found.tzinfo is not None:
        return found.astimezone(UTC)
    return bounds(found, zone())[0]


def bounds(when: date | datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first and the last instant of ``when``: equal for a time, a whole local day for a date.

    A naive time is read on the wall clock of ``zone``; if it occurs twice, the first occurrence counts.
    """
    if isinstance(when, datetime):
        return (_to_utc(when, zone),) * 2
    midnight = datetime.combine(when, time.min)
    return _to_utc(midnight, zone), _to_utc(midnight + timedelta(days=1), zone) - timedelta(microseconds=1)


def last_occurrence(clock: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the last instant up to ``now`` at which a clock in ``zone`` showed ``clock``."""
    return max(found for found in _occurrences(clock, zone, now) if found <= now)


def next_occurrence(clock: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the first instant after ``now`` at which a clock in ``zone`` shows ``clock``."""
    return min(found for found in _occurrences(clock, zone, now) if found > now)


def _occurrences(clock: time, zone: ZoneInfo, now: datetime) -> list[datetime]:
    today = now.astimezone(zone).date()
    return [_to_utc(datetime.combine(today + timedelta(days=days), clock), zone) for days in (-2, -1, 0, 1, 2)]


def _to_utc(instant: datetime, zone: ZoneInfo) -> datetime:
    return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(UTC)
