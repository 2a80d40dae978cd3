"""The coming slots of jobs: with their keys, and when their runs are due."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched.errors import Refused
from yamlsched.text import join_first
from yamlsched.timetable import slots, zones
from yamlsched.timetable.calendars import Calendars, skipped_by
from yamlsched.timetable.cron import Cron, parse_cron, without_skipped
from yamlsched.timetable.keys import run_at, slot_key

HORIZON = timedelta(days=366 * 50)
MAX_NAMES = 8
"""Jobs that a note names."""


class ScheduledJob(NamedTuple):
    """All that determines the slots of a job and their keys. ``offset`` is by how much ``spread``
    moves their runs.

    Slots up to ``not_before`` do not count, and those that calendars skip have no runs. Each waits
    for slots of the jobs ``after``.
    """

    name: str
    cron: Cron
    timezone: str
    offset: timedelta = timedelta(0)
    not_before: datetime | None = None
    after: tuple[str, ...] = ()
    skip_on: Calendars = ()
    only_on: Calendars = ()


class Upcoming(NamedTuple):
    """A future slot. ``local`` is aware, on the job's wall clock. ``run_at`` is when its run is
    due: see ``spread``.
    """

    job_type: str
    scheduled_for: datetime
    local: datetime
    run_at: datetime
    key: str
    note: str


def next_slot(cron: str, zone: str | ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after ``after`` at which a cron expression fires, in UTC; None if
    there is none.

    ``zone`` is the time zone whose wall clock the expression uses: an IANA name, read from the data
    of the ``tzdata`` package, or a ZoneInfo. ``after`` is an aware datetime. Clock changes are
    handled as for jobs: see docs/time.md.

    >>> from datetime import UTC
    >>> next_slot("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC))
    datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.timezone.utc)

    Raises CronError for an expression, and ScheduleError for a time zone, that is not supported;
    Refused if ``after`` has no time zone.
    """
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise Refused(
            f"after is {after!r:.100}: pass an aware datetime, for example datetime.now(UTC)"
        )
    where = zone if isinstance(zone, ZoneInfo) else zones.zone(zone)
    slot = slots.next_slot(parse_cron(cron), where, after)
    return slot.at if slot else None


def merge(
    jobs: Iterable[ScheduledJob], after: datetime, until: datetime | None = None
) -> Iterator[Upcoming]:
    """Yield the slots of jobs in (after, until], by time and then by name."""
    return heapq.merge(
        *(_upcoming(job, after, until) for job in jobs), key=attrgetter("scheduled_for", "job_type")
    )


def next_of_each(jobs: Iterable[ScheduledJob], after: datetime) -> Iterator[Upcoming]:
    """Yield the first slot of each job after ``after``, by time and then by name."""
    first = (list(islice(_upcoming(job, after, None), 1)) for job in jobs)
    return heapq.merge(*first, key=attrgetter("scheduled_for", "job_type"))


def starts(job: ScheduledJob, after: datetime, until: datetime) -> Iterator[Upcoming]:
    """Yield the slots of a job whose runs are due in (after, until]."""
    fires = without_skipped(job.cron, job.skip_on, job.only_on)
    upcoming = _upcoming(job._replace(cron=fires), after - job.offset, until)
    return (slot for slot in upcoming if after < slot.run_at <= until)


def _upcoming(job: ScheduledJob, after: datetime, until: datetime | None) -> Iterator[Upcoming]:
    where = zones.zone(job.timezone)
    after = after if job.not_before is None else max(after, job.not_before)
    for slot in slots.slots(job.cron, where, after, until or after + HORIZON):
        due, notes = slot.at, [slot.note] if slot.note else []
        if job.offset:
            due = run_at(job.offset, job.cron, where, slot.at)
            notes.append(f"starts {due.astimezone(where):%a %H:%M:%S} (spread)")
        if skipped := skipped_by(job.skip_on, job.only_on, slot.nominal.date()):
            notes.append(f"skipped: {skipped}")
        if job.after:
            notes.append(f"after {join_first(job.after, MAX_NAMES)}")
        key = slot_key(job.name, job.cron, slot)
        yield Upcoming(job.name, slot.at, slot.at.astimezone(where), due, key, "; ".join(notes))
