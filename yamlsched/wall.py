"""Local times as people write and read them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MIN_YEAR, MAX_YEAR = 1900, 9900


def parse(text: str) -> date | datetime:
    """Return the local date, the local time (naive) or the instant (aware) that ``text`` writes.

    Raises ValueError with what to write.
    """
    try:
        found = date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        raise ValueError(
            f'"{text}" is not a valid time: write a date such as 2026-01-14, a local time such as 2026-01-14T02:00, '
            "or an instant such as 2026-01-14T01:00Z"
        ) from None
    check_year(text, found)
    return found


def check_year(text: str, found: date) -> None:
    """Raise ValueError at either end of the calendar, where another zone or a search ahead would leave it."""
    if not MIN_YEAR <= found.year <= MAX_YEAR:
        raise ValueError(f'"{text}" is out of range: write a year from {MIN_YEAR} to {MAX_YEAR}')


def span(when: date | datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first and the last instant of ``when``: both the same, or those of a local date.

    A naive time is read on the wall clock of ``zone``; of one that happens twice, the first.
    """
    if isinstance(when, datetime):
        return (_utc(when, zone),) * 2
    midnight = datetime.combine(when, time.min)
    return _utc(midnight, zone), _utc(midnight + timedelta(days=1), zone) - timedelta(microseconds=1)


def latest(clock: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the last instant up to ``now`` at which a clock in ``zone`` showed ``clock``."""
    return max(found for found in _around(clock, zone, now) if found <= now)


def earliest(clock: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the first instant after ``now`` at which a clock in ``zone`` shows ``clock``."""
    return min(found for found in _around(clock, zone, now) if found > now)


def _around(clock: time, zone: ZoneInfo, now: datetime) -> list[datetime]:
    today = now.astimezone(zone).date()
    return [_utc(datetime.combine(today + timedelta(days=days), clock), zone) for days in (-2, -1, 0, 1, 2)]


def _utc(instant: datetime, zone: ZoneInfo) -> datetime:
    return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(UTC)


def show(instant: datetime, zone: ZoneInfo) -> str:
    """Return an instant on the wall clock of ``zone``, with its weekday and the zone's abbreviation."""
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def utc(instant: datetime) -> str:
    """Return an instant in RFC 3339, to the minute where it is a whole one."""
    spec = "seconds" if instant.second or instant.microsecond else "minutes"
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=spec) + "Z"
