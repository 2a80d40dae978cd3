"""Slots that were skipped: those of all jobs in a span, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.db import query
from yamlsched.errors import CronError, ScheduleError
from yamlsched.timetable import slots
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.times import rfc3339, short_utc
from yamlsched.timetable.zones import zone

MAX_GAPS_OF_JOB = 1_000
MICROSECOND = timedelta(microseconds=1)
REASONS = {
    "late": "it was too old when its run could have started",
    "upstream": "a job that it follows has not succeeded, or had no run to wait for",
    "key_taken": "its key was already used, by another slot or another run",
    "overlap": "a run of an earlier slot was unfinished, and overlap: skip does not wait for it",
    "superseded": (
        "several slots were due at once, and catchup: latest runs the newest of them only"
    ),
    "calendar": "its date is skipped",
    "paused": "the job was paused",
    "disabled": "the job was disabled in schedules.yaml or in its environment",
    "retired": "the job was not in schedules.yaml",
}
"""Why slots have no run, what nobody intended first."""


@dataclass(frozen=True)
class Skipped:
    """Slots of a job that were skipped for one reason, or recorded as skipped, in the span.

    The instants are those of slots, or the ends of the span.
    """

    job_type: str
    timezone: str
    reason: str
    slots: int
    first_at: datetime
    last_at: datetime

    @property
    def why(self) -> str:
        return REASONS[self.reason]


class GapOfJob(NamedTuple):
    """A gap of a job, which has ``schedule`` now."""

    job_type: str
    timezone: str
    schedule: str | None
    reason: str
    first_slot: datetime
    last_slot: datetime
    slots: int
    recorded_at: datetime
    detail: str | None
    is_new: bool  # recorded within the span


def pause_words(job: Any) -> str:
    """Return by whom a job is paused, until when and why, after a clause that says since when."""
    until = f" until {rfc3339(job.paused_until, 'seconds')}" if job.paused_until else ""
    reason = f": {job.paused_reason}" if job.paused_reason else ""
    return f" by {job.paused_by or 'an operator'}{until}{reason}"


def gap_sentence(gap: Any, pause: str = "") -> str:
    """Return why the slots of a gap were skipped; ``gap`` has the columns of skipped_slots.

    ``pause`` says who paused the job, as ``paused_by`` does.
    """
    if gap.slots == 1:
        span = ""
    else:
        first, last = short_utc(gap.first_slot), short_utc(gap.last_slot)
        span = f"; the same holds for the {gap.slots} slots from {first} to {last}"
    what, _, run = (gap.detail or "").partition(":")
    why = (pause or REASONS[gap.reason]) + (
        f" ({what}, run {run})" if run else f" ({what})" if what else ""
    )
    if what and gap.reason == "superseded":
        why = (
            f"it waited for {what}, whose run {run} died or was cancelled, until a newer slot took"
            " its place"
        )
    return f"skipped ({gap.reason}): {why}{span}; recorded at {short_utc(gap.recorded_at)}"


def read_gaps(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime
) -> list[GapOfJob]:
    """Return the gaps of each job that overlap [since, until), or were recorded in it."""
    parameters = {"namespace": namespace, "since": since, "until": until, "of_job": MAX_GAPS_OF_JOB}
    return query.fetch(connection, GapOfJob, "report.skipped", **parameters)


def skipped(gaps: Sequence[GapOfJob], since: datetime, until: datetime) -> list[Skipped]:
    """Return the gaps by job and reason, unintended ones first, and the largest."""
    totals: dict[tuple[str, str, str], tuple[int, datetime, datetime]] = {}
    for gap in gaps:
        job, timezone, _, reason, first, last, number, _, _, is_new = gap
        if not is_new and (first < since or last >= until):
            part = within_span(gap, since, until)
            if part is None:
                continue
            number, first, last = part
        known = totals.get((job, timezone, reason))
        if known is not None:
            number, first, last = number + known[0], min(first, known[1]), max(last, known[2])
        totals[job, timezone, reason] = number, first, last
    rank = list(REASONS).index
    worst_first = sorted(totals, key=lambda key: (rank(key[2]), -totals[key][0], key[0]))
    return [Skipped(*key, *totals[key]) for key in worst_first]


def within_span(
    gap: GapOfJob, since: datetime, until: datetime
) -> tuple[int, datetime, datetime] | None:
    """Return the number of slots of a gap within the span, the first and the last one; None if
    there is none.

    Those of a gap that extends beyond the span are counted by the job's cron. If that was changed,
    all count.
    """
    first, last = max(gap.first_slot, since), min(gap.last_slot, until - MICROSECOND)
    if (first, last) == (gap.first_slot, gap.last_slot):
        return gap.slots, first, last

    try:
        span = slots.span(
            parse_schedule(gap.schedule or ""), zone(gap.timezone), first - MICROSECOND, last
        )
    except (CronError, ScheduleError):
        return gap.slots, first, last
    return (min(span.count, gap.slots), span.first, span.last) if span else None
