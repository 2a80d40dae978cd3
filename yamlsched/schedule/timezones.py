"""The names of time zones, and what people write instead of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files

from yamlsched.schedule.source import Finding
from yamlsched.text import closest_match, quoted

ClosestMatch = Callable[[str, Iterable[str], float], str | None]

ABBREVIATIONS = {
    "AEST": "Australia/Sydney",
    "BST": "Europe/London",
    "CDT": "America/Chicago",
    "CEST": "Europe/Berlin",
    "CET": "Europe/Berlin",
    "CST": "America/Chicago",
    "EDT": "America/New_York",
    "EET": "Europe/Helsinki",
    "EST": "America/New_York",
    "HST": "Pacific/Honolulu",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MDT": "America/Denver",
    "MET": "Europe/Berlin",
    "MST": "America/Denver",
    "PDT": "America/Los_Angeles",
    "PST": "America/Los_Angeles",
    "WET": "Europe/Lisbon",
}
"""The zone that is usually meant by an abbreviation. An abbreviation names an offset, or several
places.
"""


@cache
def names() -> frozenset[str]:
    """Return the names in the tzdata package, which are the same on every host."""
    listed = files("tzdata").joinpath("zones").read_text("ascii").split()
    return frozenset(listed) - {"Factory"}


@cache
def _by_city() -> dict[str, str]:
    return {name.rpartition("/")[2]: name for name in sorted(names(), reverse=True)}


def explain(text: str, closest_match: ClosestMatch = closest_match) -> Finding:
    """Return why a name is not a time zone."""
    city = closest_match(text.rpartition("/")[2], _by_city(), 0.82)
    guess = ABBREVIATIONS.get(text.upper()) or _by_city().get(city or "")
    remedy = "Write an IANA name such as Europe/Berlin or UTC."
    if guess and not re.search("[0-9]", text):  # an offset is no place
        remedy = f'Did you mean "{guess}"?'
    return Finding("YS205", f"{quoted(text)} is not a time zone", remedy)
