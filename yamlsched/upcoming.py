"""The coming slots of jobs, as people want to see them: a list, or a calendar in which pile-ups show. No database."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from yamlsched.cron.expression import Cron
from yamlsched.keys import slot_key
from yamlsched.slots import slots
from yamlsched.zones import zone

FOREVER = timedelta(days=366 * 50)
PILE = 5
"""Jobs that begin in one minute, from which on it is called a pile-up."""
FULLEST = 5
"""Minutes that are shown where there are fewer pile-ups."""
SHOWN = 15
"""Pile-ups that are shown."""
NAMES = 6
"""Names of jobs that are shown of each."""


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
    """Return lines: for each local day and hour how many jobs begin in it, and then the minutes in which many do.

    Those are all in which at least ``PILE`` begin, up to ``SHOWN``; or else the ``FULLEST`` in which two begin.
    """
    by_hour: defaultdict[date, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    piles: Counter[tuple[str, tuple[str, ...]]] = Counter()
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    for at, together in groupby(found, key=lambda slot: slot.scheduled_for):
        local = at.astimezone(where)
        names = tuple(slot.job_type for slot in together)
        by_hour[local.date()][local.hour].update(names)
        if len(names) > 1:
            pile = f"{local:%H:%M}", names
            piles[pile] += 1
            first.setdefault(pile, f"{local:%a %m-%d}")
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
    worst = sorted(piles.items(), key=lambda pile: (-len(pile[0][1]), -pile[1], pile[0]))
    high = sum(1 for (_, names), _ in worst if len(names) >= PILE)
    if worst:
        lines += ["", "most at once:"]
    for pile, times in worst[: min(SHOWN, max(FULLEST, high))]:
        minute, names = pile
        shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
        often = f"on {first[pile]}" if times == 1 else f"{times} times from {first[pile]}"
        lines.append(f"  {minute}  {len(names)} jobs, {often}: {shown}")
    if high > SHOWN:
        lines.append(f"  and {high - SHOWN} more with {PILE} jobs or more")
    return lines
