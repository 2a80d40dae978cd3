"""The importer's check of itself: the fire times of the source's own rules against ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache

from yamlsched.extras.importing.calendar import EPOCH, MINUTE, OnCalendar, stretches
from yamlsched.extras.importing.model import (
    Imported,
    ImportNote,
    Treatment,
    expression,
)
from yamlsched.text import join_first
from yamlsched.timetable.cron import Cron
from yamlsched.timetable.slots import slot_minutes

MAX_EXAMPLES = 3
AROUND_CHANGE = 1440
"""In minutes."""


def compare(batch: Imported, start: datetime, days: int) -> None:
    """Report the jobs whose fire times differ in the ``days`` days from ``start`` on."""
    start = start.replace(second=0, microsecond=0)
    end = start + timedelta(days=days)
    for job in batch.jobs:
        if what := _difference(expression(job.keys), job.times, start, end):
            message = f"{job.name} fires at other times within {days} days: {what}"
            batch.notes.append(ImportNote(Treatment.CHANGED, job.file, job.line, message))
            batch.differing += 1


@cache
def _difference(cron: Cron, times: Sequence[OnCalendar], start: datetime, end: datetime) -> str:
    """Return how the fire times of the source and ours differ, in words; "" if they do not."""
    where = times[0].zone
    theirs = {minute for part in times for minute in part.fires(start, end)}
    ours = set(slot_minutes(cron, where, start - MINUTE, end - MINUTE))
    if times[0].is_vague:
        changes = [stretch.start for stretch in stretches(where, start, end)[1:]]
        near = {
            at
            for at in ours ^ theirs
            if any(abs(at - change) <= AROUND_CHANGE for change in changes)
        }
        ours, theirs = ours - near, theirs - near
    parts = []
    for scheduler, minutes in (("there", theirs - ours), ("in yamlsched", ours - theirs)):
        if minutes:
            shown = [f"{EPOCH + minute * MINUTE:%Y-%m-%dT%H:%MZ}" for minute in sorted(minutes)]
            parts.append(f"only {scheduler}: {join_first(shown, MAX_EXAMPLES)}")
    return "; ".join(parts)
