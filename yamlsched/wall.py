"""Local times as people write and read them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from yamlsched.errors import Refused


def read(text: str, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first and the last instant that ``text`` means: both the same, or those of a local date.

    A time without an offset is read on the wall clock of ``zone``; of one that happens twice, the first.
    Raises Refused with what to write.
    """
    try:
        if len(text) == 10:
            day = date.fromisoformat(text)
            midnight = datetime.combine(day, time.min)
            return _utc(midnight, zone), _utc(midnight + timedelta(days=1), zone) - timedelta(microseconds=1)
        instant = datetime.fromisoformat(text.replace("z", "Z"))
        return (_utc(instant, zone),) * 2
    except (ValueError, OverflowError):
        raise Refused(
            f'"{text}" is no time: write a date such as 2026-01-14, a local time such as 2026-01-14T02:00, '
            "or an instant such as 2026-01-14T01:00Z"
        ) from None


def _utc(instant: datetime, zone: ZoneInfo) -> datetime:
    return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(UTC)


def show(instant: datetime, zone: ZoneInfo) -> str:
    """Return an instant on the wall clock of ``zone``, with its weekday and the zone's abbreviation."""
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def utc(instant: datetime) -> str:
    """Return an instant in RFC 3339, to the minute where it is a whole one."""
    spec = "seconds" if instant.second or instant.microsecond else "minutes"
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=spec) + "Z"
