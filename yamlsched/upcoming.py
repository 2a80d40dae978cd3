"""The next slots of jobs, as a list or as a calendar that shows pile-ups. No database."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched import slots, zones
from yamlsched.cron.expression import Cron, parse_cron
from yamlsched.errors import Refused
from yamlsched.keys import slot_key
from yamlsched.spread import offset, run_at
from yamlsched.terminal import join_first

HORIZON = timedelta(days=366 * 50)
MIN_PILE_UP_JOBS = 5
"""Jobs that start in one minute are a pile-up from this number on."""
MIN_SHOWN_MINUTES, MAX_SHOWN_MINUTES = 5, 15
"""How many of the fullest minutes are shown: all pile-ups within these limits."""
MAX_NAMES = 6
"""Jobs that are named of each."""


class ScheduledJob(NamedTuple):
    """All that determines the slots of a job and their keys."""

    name: str
    cron: Cron
    timezone: str
    spread: timedelta = timedelta(0)


class Upcoming(NamedTuple):
    """A future slot. ``local`` is aware, on the job's wall clock. ``run_at`` is when its run is due: see ``spread``."""

    job_type: str
    scheduled_for: datetime
    local: datetime
    run_at: datetime
    key: str
    note: str


def next_slot(cron: str, zone: str | ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after ``after`` at which a cron expression fires, in UTC; None if there is none.

    ``zone`` is the time zone whose wall clock the expression uses: an IANA name, read from the data of the ``tzdata``
    package, or a ZoneInfo. ``after`` is an aware datetime. Clock changes are handled as for jobs: see docs/time.md.

    >>> from datetime import UTC
    >>> next_slot("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC))
    datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.timezone.utc)

    Raises CronError for an expression, and ScheduleError for a time zone, that is not supported; Refused if ``after``
    has no time zone.
    """
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise Refused(f"after is {after!r:.100}: pass an aware datetime, for example datetime.now(UTC)")
    where = zone if isinstance(zone, ZoneInfo) else zones.zone(zone)
    found = slots.next_slot(parse_cron(cron), where, after)
    return found.at if found else None


def merge(jobs: Iterable[ScheduledJob], after: datetime, until: datetime | None = None) -> Iterator[Upcoming]:
    """Yield the slots of jobs in (after, until], by time and then by name."""
    return heapq.merge(*(_upcoming(job, after, until) for job in jobs), key=attrgetter("scheduled_for", "job_type"))


def starts(jobs: Iterable[ScheduledJob], after: datetime, until: datetime) -> Iterator[Upcoming]:
    """Yield the slots whose runs are due in (after, until], by that time and then by name."""
    return heapq.merge(*(_starts(job, after, until) for job in jobs), key=attrgetter("run_at", "job_type"))


def _starts(job: ScheduledJob, after: datetime, until: datetime) -> Iterator[Upcoming]:
    found = _upcoming(job, after - offset(job.name, job.spread), until)
    return (slot for slot in found if after < slot.run_at <= until)


def _upcoming(job: ScheduledJob, after: datetime, until: datetime | None) -> Iterator[Upcoming]:
    where = zones.zone(job.timezone)
    for slot in slots.slots(job.cron, where, after, until or after + HORIZON):
        due, note = slot.at, slot.note
        if job.spread:
            due = run_at(job.name, job.spread, job.cron, where, slot.at)
            note += f"{'; ' * bool(note)}starts {due.astimezone(where):%a %H:%M:%S} (spread)"
        yield Upcoming(job.name, slot.at, slot.at.astimezone(where), due, slot_key(job.name, job.cron, slot), note)


def calendar(found: Iterable[Upcoming], where: ZoneInfo) -> list[str]:
    """Return lines: how many jobs start in each local day and hour, and then the minutes in which most start at once.

    Those are the minutes in which at least ``MIN_PILE_UP_JOBS`` start, or the fullest in which two or more do.
    ``found`` is in the order in which ``starts`` yields it.
    """
    by_hour: defaultdict[date, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    starts: defaultdict[tuple[str, tuple[str, ...]], list[date]] = defaultdict(list)
    for at, together in groupby(found, key=lambda slot: slot.run_at.replace(second=0)):
        local = at.astimezone(where)
        names = tuple(sorted(slot.job_type for slot in together))
        by_hour[local.date()][local.hour].update(names)
        if len(names) > 1:
            starts[f"{local:%H:%M}", names].append(local.date())
    return [*_hours(by_hour), *_fullest(starts)] if by_hour else []


def _hours(by_hour: Mapping[date, Mapping[int, set[str]]]) -> Iterator[str]:
    """Yield a heading, and a line for each day from the first to the last."""
    width = max(2, *(len(str(len(names))) for hours in by_hour.values() for names in hours.values()))
    yield " " * 10 + " ".join(f"{hour:02}".rjust(width) if width == 2 else f"{hour:>{width}}" for hour in range(24))
    day, last = min(by_hour), max(by_hour)
    while day <= last:
        jobs = by_hour.get(day, {})
        yield f"{day:%a %m-%d} " + " ".join(str(len(jobs.get(hour, ())) or ".").rjust(width) for hour in range(24))
        day += timedelta(days=1)


def _fullest(starts: Mapping[tuple[str, tuple[str, ...]], list[date]]) -> Iterator[str]:
    """Yield the minutes in which most jobs start; ``starts`` has the dates, by minute of the day and jobs."""
    if starts:
        yield from ("", "most at once:")
    fullest = sorted(starts, key=lambda start: (-len(start[1]), -len(starts[start]), start))
    pile_ups = sum(len(names) >= MIN_PILE_UP_JOBS for _, names in fullest)
    for minute, names in fullest[: min(MAX_SHOWN_MINUTES, max(MIN_SHOWN_MINUTES, pile_ups))]:
        dates = starts[minute, names]
        often = f"on {dates[0]:%a %m-%d}" if len(dates) == 1 else f"{len(dates)} times from {dates[0]:%a %m-%d}"
        yield f"  {minute}  {len(names)} jobs, {often}: {join_first(names, MAX_NAMES)}"
    if pile_ups > MAX_SHOWN_MINUTES:
        yield f"  and {pile_ups - MAX_SHOWN_MINUTES} more with {MIN_PILE_UP_JOBS} jobs or more"
