"""Instants as people write them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from yamlsched import durations, wall

LONGEST = timedelta(days=36_525)
"""No duration is longer, so that no instant overflows."""


def parse(text: str) -> datetime | timedelta:
    """Return the instant that ``text`` writes in RFC 3339 (without an offset it is UTC), or the duration.

    >>> parse("2026-01-14"), parse("90m")
    (datetime.datetime(2026, 1, 14, 0, 0, tzinfo=datetime.timezone.utc), datetime.timedelta(seconds=5400))
    >>> parse("now")
    datetime.timedelta(0)

    Raises ValueError with a sentence that says what to write.
    """
    if text == "now":
        return timedelta(0)
    if re.fullmatch(r"[0-9dhms]+", text):
        duration = durations.parse(text)
        if duration > LONGEST:
            raise ValueError(f"{text} is longer than 100 years: write a time such as 2026-01-14T02:00Z")
        return duration
    try:
        instant = datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        raise ValueError(
            f'"{text}" is not a valid time: write 2026-01-14T02:00Z, 2026-01-14, or a duration such as 90m'
        ) from None
    wall.check_year(text, instant)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def before(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return ``value``, a duration reaching back from ``now``."""
    return now - value if isinstance(value, timedelta) else value


def after(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return ``value``, a duration reaching ahead of ``now``."""
    return now + value if isinstance(value, timedelta) else value


def rough(duration: timedelta) -> str:
    """Return ``duration`` in its two largest units, rounded down.

    >>> rough(timedelta(seconds=3725))
    '1h2m'
    """
    seconds = int(abs(duration).total_seconds())
    for unit in (86400, 3600, 60):
        if seconds >= unit:
            return durations.show(timedelta(seconds=seconds - seconds % {86400: 3600, 3600: 60, 60: 1}[unit]))
    return f"{seconds}s"
