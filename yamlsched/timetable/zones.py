"""Time zones from the ``tzdata`` package: the same on every host and operating system."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]

from yamlsched.errors import ScheduleError

TZDATA_FOLDER = Path(tzdata.__file__).parent / "zoneinfo"
_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


@cache
def zone(name: str) -> ZoneInfo:
    """Return the time zone called ``name``. Raises ScheduleError if the data does not have it."""
    if _NAME.fullmatch(name):
        try:
            with (TZDATA_FOLDER / name).open("rb") as file:
                return ZoneInfo.from_file(file, key=name)
        except (
            OSError,
            ValueError,
        ):  # a directory, a file that is not a zone, a name that is too long
            pass
    raise ScheduleError(f'no time zone "{name}" in time zone data {tzdata.IANA_VERSION}')


def zone_or_utc(name: str) -> ZoneInfo:
    """Return the time zone called ``name``, for showing times; UTC if the data does not have it."""
    try:
        return zone(name)
    except ScheduleError:
        return zone("UTC")
