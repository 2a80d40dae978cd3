"""The importer's check of itself: the fire times of the source's own rules against ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache

from yamlsched.extras.importing.calendar import EPOCH, MINUTE, OnCalendar, stretches
from yamlsched.extras.importing.model import (
    Imported,
    ImportedJob,
    ImportNote,
    Treatment,
    expression,
)
from yamlsched.text import join_first
from yamlsched.timetable.cron import Cron
from yamlsched.timetable.slots import slot_minutes

NOT_COMPARED = (
    "the fire times of this job were not compared, because there are too many: import fewer files"
    " at once"
)
MAX_EXAMPLES = 3
MAX_SECONDS = 30.0
"""After this long, the remaining jobs are not compared."""
AROUND_CHANGE = 1440
"""In minutes."""


def compare(batch: Imported, start: datetime, days: int) -> None:
    """Report the jobs whose fire times differ in the ``days`` days from ``start`` on."""
    start = start.replace(second=0, microsecond=0)
    end = start + timedelta(days=days)
    until = time.monotonic() + MAX_SECONDS
    for job in batch.jobs:
        if time.monotonic() > until:
            _note(batch, job, NOT_COMPARED)
        elif what := _difference(expression(job.keys), job.times, start, end):
            _note(batch, job, f"{job.name} fires at other times within {days} days: {what}")
            batch.differing += 1


def _note(batch: Imported, job: ImportedJob, message: str) -> None:
    batch.notes.append(ImportNote(Treatment.CHANGED, job.file, job.line, message))


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
    return _describe(_instants(theirs - ours), _instants(ours - theirs))


def _instants(minutes: set[int]) -> list[datetime]:
    return [EPOCH + minute * MINUTE for minute in sorted(minutes)]


def _describe(missing: Sequence[datetime], extra: Sequence[datetime]) -> str:
    parts = []
    for where, instants in (("only there", missing), ("only in yamlsched", extra)):
        if instants:
            times = [f"{instant:%Y-%m-%dT%H:%MZ}" for instant in instants]
            parts.append(f"{where}: {join_first(times, MAX_EXAMPLES)}")
    return "; ".join(parts)
