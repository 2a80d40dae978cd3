"""The importer's check of itself: the fire times of the source's own rules against ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from yamlsched.extras.importing.calendar import EPOCH, MINUTE, stretches
from yamlsched.extras.importing.model import (
    Imported,
    ImportedJob,
    ImportNote,
    Treatment,
    expression,
)
from yamlsched.text import join_first
from yamlsched.timetable.slots import slot_minutes
from yamlsched.timetable.zones import zone

NOT_COMPARED = (
    "the fire times of this job were not compared, because there are too many: import fewer files"
    " at once"
)
MAX_EXAMPLES = 3
MAX_FIRE_TIMES = 20_000_000
"""After this many, the remaining jobs are not compared: half a minute."""
AROUND_CHANGE = 1440
"""In minutes."""


def compare(batch: Imported, start: datetime, days: int) -> None:
    """Report the jobs whose fire times differ in the ``days`` days from ``start`` on."""
    start = start.replace(second=0, microsecond=0)
    end = start + timedelta(days=days)
    known: dict[Any, tuple[list[datetime], list[datetime]]] = {}
    compared = 0
    for job in batch.jobs:
        key = (expression(job.keys), job.keys["timezone"], job.times)
        if key not in known and compared > MAX_FIRE_TIMES:
            _note(batch, job, NOT_COMPARED)
            continue
        if key not in known:
            theirs = {minute for times in job.times for minute in times.fires(start, end)}
            compared += len(theirs)
            known[key] = _difference(job, theirs, start, end)
        if any(known[key]):
            what = _describe(*known[key])
            _note(batch, job, f"{job.name} fires at other times within {days} days: {what}")
            batch.differing += 1


def _note(batch: Imported, job: ImportedJob, message: str) -> None:
    batch.notes.append(ImportNote(Treatment.CHANGED, job.file, job.line, message))


def _difference(
    job: ImportedJob, theirs: set[int], start: datetime, end: datetime
) -> tuple[list[datetime], list[datetime]]:
    zone_info = zone(job.keys["timezone"])
    ours = set(slot_minutes(expression(job.keys), zone_info, start - MINUTE, end - MINUTE))
    if job.times[0].is_vague:
        changes = [stretch.start for stretch in stretches(zone_info, start, end)[1:]]
        near = {
            at
            for at in ours ^ theirs
            if any(abs(at - change) <= AROUND_CHANGE for change in changes)
        }
        ours, theirs = ours - near, theirs - near
    return _instants(theirs - ours), _instants(ours - theirs)


def _instants(minutes: set[int]) -> list[datetime]:
    return [EPOCH + minute * MINUTE for minute in sorted(minutes)]


def _describe(missing: Sequence[datetime], extra: Sequence[datetime]) -> str:
    parts = []
    for where, instants in (("only there", missing), ("only in yamlsched", extra)):
        if instants:
            times = [f"{instant:%Y-%m-%dT%H:%MZ}" for instant in instants]
            parts.append(f"{where}: {join_first(times, MAX_EXAMPLES)}")
    return "; ".join(parts)
