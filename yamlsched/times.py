"""Instants and local times: how they are written and read everywhere."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from yamlsched import durations

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MIN_YEAR, MAX_YEAR = 1900, 9900
"""Outside of these years another zone, or a search for the next slot, could leave the range of datetime."""
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


def parse_instant(text: str) -> datetime | timedelta:
    """Return the instant that ``text`` writes in RFC 3339 (UTC if it has no offset), or the duration.

    >>> parse_instant("2026-01-14"), parse_instant("90m")
    (datetime.datetime(2026, 1, 14, 0, 0, tzinfo=datetime.timezone.utc), datetime.timedelta(seconds=5400))
    >>> parse_instant("now")
    datetime.timedelta(0)

    Raises ValueError with a message that says what to write.
    """
    if text == "now":
        return timedelta(0)
    if re.fullmatch(r"[0-9dhms]+", text):
        duration = durations.parse(text)
        if duration > MAX_DURATION:
            raise ValueError(f"{text} is longer than 100 years: write a time such as 2026-01-14T02:00Z")
        return duration
    try:
        instant = datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        raise ValueError(
            f'"{text}" is not a valid time: write 2026-01-14T02:00Z, 2026-01-14, or a duration such as 90m'
        ) from None
    _check_year(text, instant)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def parse_local(text: str) -> date | datetime:
    """Return the local date, the local time (naive) or the instant (aware) that ``text`` writes.

    Raises ValueError with a message that says what to write.
    """
    try:
        found = date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        raise ValueError(
            f'"{text}" is not a valid time: write a date such as 2026-01-14, a local time such as 2026-01-14T02:00, '
            "or an instant such as 2026-01-14T01:00Z"
        ) from None
    _check_year(text, found)
    return found


def _check_year(text: str, found: date) -> None:
    if not MIN_YEAR <= found.year <= MAX_YEAR:
        raise ValueError(f'"{text}" is out of range: write a year from {MIN_YEAR} to {MAX_YEAR}')


def before(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return ``value`` as an instant; a duration is subtracted from ``now``."""
    return now - value if isinstance(value, timedelta) else value


def after(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return ``value`` as an instant; a duration is added to ``now``."""
    return now + value if isinstance(value, timedelta) else value


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
