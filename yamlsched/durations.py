"""Durations as users write them: ``90s``, ``1h30m``, ``2d``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
MINUTE = timedelta(minutes=1)
PATTERN = r"^(?=[0-9])([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"


@lru_cache(maxsize=4096)
def parse(text: str) -> timedelta:
    """Parse a duration: units from days to seconds, in that order, each at most once.

    >>> parse("1h30m")
    datetime.timedelta(seconds=5400)

    Raises ValueError with a message that says what to write.
    """
    if not re.fullmatch(PATTERN, text):
        if re.fullmatch(r"[0-9]+", text):
            raise ValueError(
                f'{text} has no unit: write "{text}s" for seconds or "{text}m" for minutes'
            )
        raise ValueError(f'"{text}" is not a duration: write for example 90s, 5m, 1h30m or 2d')
    parts = re.findall(r"([0-9]+)([dhms])", text)
    return timedelta(seconds=sum(int(number) * UNITS[unit] for number, unit in parts))


def show(duration: timedelta) -> str:
    """Return ``duration`` as users write it, rounded to seconds; below ten seconds to tenths.

    >>> show(timedelta(hours=1, minutes=30)), show(timedelta(seconds=1.42))
    ('1h30m', '1.4s')
    """
    seconds = duration.total_seconds()
    if seconds < 0:
        return "-" + show(-duration)
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left, text = round(seconds), ""
    for unit, size in UNITS.items():
        number, left = divmod(left, size)
        if number:
            text += f"{number}{unit}"
    return text or "0s"


def approximate(duration: timedelta) -> str:
    """Return ``duration`` in its two largest units, rounded down, without its sign.

    >>> approximate(timedelta(seconds=3725))
    '1h2m'
    """
    seconds = int(abs(duration).total_seconds())
    for unit in (86400, 3600, 60):
        if seconds >= unit:
            return show(timedelta(seconds=seconds - seconds % {86400: 3600, 3600: 60, 60: 1}[unit]))
    return f"{seconds}s"


def between(first: datetime, second: datetime) -> str:
    """Return the time between two instants, in its two largest units down to minutes; below a
    minute in seconds.

    It is counted between the minutes of the clock that the instants are in. So all ages on a screen
    change together, once in a minute, and agree with times that are shown without seconds.

    >>> between(datetime(2026, 1, 14, 2, 0, 50), datetime(2026, 1, 14, 3, 2, 10))
    '1h2m'
    """
    if abs(first - second) < MINUTE:
        return approximate(first - second)
    return approximate(
        first.replace(second=0, microsecond=0) - second.replace(second=0, microsecond=0)
    )
