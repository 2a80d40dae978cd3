"""The coming slots of jobs, as people want to see them: a list, or a calendar in which pile-ups show. No database."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from yamlsched.cron import Cron
from yamlsched.keys import slot_key
from yamlsched.slots import slots
from yamlsched.zones import zone

FOREVER = timedelta(days=366 * 50)
PILE = 3
"""Jobs that begin in one minute, from which on it is called a pile-up."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """One slot to come. ``local`` is aware, on the job's wall clock."""

    job_type: str
    scheduled_for: datetime
    local: datetime
    key: str
    note: str


def upcoming(job_type: str, cron: Cron, timezone: str, after: datetime, until: datetime | None) -> Iterator[Upcoming]:
    """Yield the slots of a job in (after, until], oldest first."""
    where = zone(timezone)
    for slot in slots(cron, where, after, until or after + FOREVER):
        yield Upcoming(job_type, slot.at, slot.at.astimezone(where), slot_key(job_type, cron, slot), slot.note)


def merged(jobs: Iterable[tuple[str, Cron, str]], after: datetime, until: datetime | None = None) -> Iterator[Upcoming]:
    """Yield the slots of several jobs, given as name, cron and timezone, by time and then by name."""
    streams = [upcoming(name, cron, timezone, after, until) for name, cron, timezone in jobs]
    return heapq.merge(*streams, key=lambda slot: (slot.scheduled_for, slot.job_type))


def calendar(found: Iterable[Upcoming], where: ZoneInfo) -> list[str]:
    """Return lines: for each local day and hour how many jobs begin in it, and then the minutes in which many do."""
    by_hour: defaultdict[date, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    piles: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for at, together in groupby(found, key=lambda slot: slot.scheduled_for):
        local = at.astimezone(where)
        names = tuple(slot.job_type for slot in together)
        by_hour[local.date()][local.hour].update(names)
        if len(names) >= PILE:
            piles[f"{local:%H:%M}", names] += 1
    if not by_hour:
        return []
    widest = max(len(str(len(names))) for hours in by_hour.values() for names in hours.values())
    width = max(2, widest)
    lines = [" " * 10 + " ".join(f"{hour:0{width}}" if width == 2 else f"{hour:>{width}}" for hour in range(24))]
    day, last = min(by_hour), max(by_hour)
    while day <= last:
        cells = [str(len(by_hour[day][hour])) if by_hour[day][hour] else "." for hour in range(24)]
        lines.append(f"{day:%a %m-%d} " + " ".join(f"{cell:>{width}}" for cell in cells))
        day += timedelta(days=1)
    worst = sorted(piles.items(), key=lambda pile: (-len(pile[0][1]), -pile[1], pile[0]))[:5]
    if worst:
        lines += ["", "most at once:"]
    for (minute, names), times in worst:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"  {minute}  {len(names)} jobs, {times}x: {shown}")
    return lines
