"""Calendars: lists of local dates on which, or off which, slots are skipped. See
docs/calendars.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from yamlsched.errors import ScheduleError

ENDS_SOON = timedelta(days=60)
"""This long before the end of a calendar, what uses it is warned about."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """A list of local dates: ``dates`` are pairs of a first and a last one. It is complete up to
    ``until``.

    The pairs are kept in order, and those that overlap as one.
    """

    name: str
    dates: tuple[tuple[date, date], ...]
    until: date | None = None

    def __post_init__(self) -> None:
        merged: list[tuple[date, date]] = []
        for first, last in sorted(self.dates):
            if merged and first <= merged[-1][1]:
                begin, end = merged.pop()
                first, last = begin, max(last, end)
            merged.append((first, last))
        object.__setattr__(self, "dates", tuple(merged))

    def has(self, day: date) -> bool:
        """Return whether ``day`` is one of the dates."""
        nth = bisect_right(self.dates, (day, date.max))
        return nth > 0 and day <= self.dates[nth - 1][1]

    def ends_soon(self, now: datetime) -> str:
        """Return a sentence if the list ends within ``ENDS_SOON`` of ``now``, or has ended; "" if
        it does not.
        """
        if self.until is None or self.until >= (now + ENDS_SOON).date():
            return ""
        return (
            f'calendar "{self.name}" {"ended" if self.until < now.date() else "ends"} on'
            f" {self.until}"
        )

    def to_yaml(self) -> dict[str, Any]:
        """Return the entry of the file."""
        dates = [str(first) if first == last else f"{first}/{last}" for first, last in self.dates]
        return {"dates": dates, **({"until": str(self.until)} if self.until else {})}

    @classmethod
    def from_yaml(cls, name: str, entry: Mapping[str, Any]) -> Calendar:
        """Return the calendar of ``to_yaml``. Raises ValueError for a date that does not exist."""
        until = entry.get("until")
        return cls(
            name,
            tuple(map(parse_dates, entry["dates"])),
            date.fromisoformat(until) if until else None,
        )


Calendars = tuple[Calendar, ...]


def parse_dates(text: str) -> tuple[date, date]:
    """Return the first and last date of ``2026-12-25`` or ``2026-11-26/2026-11-30``."""
    first, _, last = text.partition("/")
    return date.fromisoformat(first), date.fromisoformat(last or first)


def skipped_by(skip_on: Calendars, only_on: Calendars, day: date) -> str:
    """Return the calendars that skip the slots of a local date, as a gap is stored with them; "" if
    they run.
    """
    if only_on and not any(calendar.has(day) for calendar in only_on):
        return "not in " + ", ".join(calendar.name for calendar in only_on)
    return ", ".join(calendar.name for calendar in skip_on if calendar.has(day))


def of_rows(rows: Sequence[Mapping[str, Any]]) -> Calendars:
    """Return the calendars that job_definitions stores. Raises ScheduleError for what a later
    release has written.
    """
    try:
        return tuple(Calendar.from_yaml(row["name"], row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise ScheduleError(f"this release cannot read its calendars: {error!r:.200}") from error


def to_rows(calendars: Calendars) -> list[dict[str, Any]]:
    """Return how job_definitions stores calendars: with their dates, so that a job's slots are
    decided by its row.
    """
    return [{"name": calendar.name, **calendar.to_yaml()} for calendar in calendars]
