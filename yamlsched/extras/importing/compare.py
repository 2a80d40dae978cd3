"""The importer's check of itself: the fire times of the source's own rules against ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from yamlsched.extras.importing.calendar import EPOCH, MINUTE, Calendar, stretches
from yamlsched.extras.importing.model import ImportedJob
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.slots import slot_minutes
from yamlsched.timetable.zones import zone

MAX_EXAMPLES = 3
MAX_FIRE_TIMES = 20_000_000
"""After this many, the remaining jobs are not compared: half a minute."""
AROUND_CHANGE = 1440
"""In minutes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Instants (UTC) at which only one side starts a job: ``missing`` in yamlsched, or ``extra`` there."""

    job: ImportedJob
    missing: Sequence[datetime]
    extra: Sequence[datetime]


def compare(jobs: Sequence[ImportedJob], start: datetime, days: int) -> tuple[list[Difference], list[ImportedJob]]:
    """Return the jobs whose fire times differ in the ``days`` days from ``start`` on, and those not compared."""
    start = start.replace(second=0, microsecond=0)
    end = start + timedelta(days=days)
    found: list[Difference] = []
    not_compared: list[ImportedJob] = []
    known: dict[Any, tuple[list[datetime], list[datetime]]] = {}
    compared = 0
    for job in jobs:
        key = (job.keys["cron"], job.keys["timezone"], job.times)
        if key not in known and compared > MAX_FIRE_TIMES:
            not_compared.append(job)
            continue
        if key not in known:
            theirs = job.times.fires(start, end)
            compared += len(theirs)
            known[key] = _difference(job, theirs, start, end)
        if any(known[key]):
            found.append(Difference(job, *known[key]))
    return found, not_compared


def _difference(
    job: ImportedJob, theirs: set[int], start: datetime, end: datetime
) -> tuple[list[datetime], list[datetime]]:
    zone_info = zone(job.keys["timezone"])
    ours = set(slot_minutes(parse_cron(job.keys["cron"]), zone_info, start - MINUTE, end - MINUTE))
    if isinstance(job.times, Calendar) and job.times.is_vague:
        changes = [stretch.start for stretch in stretches(zone_info, start, end)[1:]]
        near = {at for at in ours ^ theirs if any(abs(at - change) <= AROUND_CHANGE for change in changes)}
        ours, theirs = ours - near, theirs - near
    return _instants(theirs - ours), _instants(ours - theirs)


def _instants(minutes: set[int]) -> list[datetime]:
    return [EPOCH + minute * MINUTE for minute in sorted(minutes)]


def describe(difference: Difference, days: int) -> str:
    """Return a difference as a sentence with the first instants."""
    parts = []
    for where, instants in (("only there", difference.missing), ("only in yamlsched", difference.extra)):
        if instants:
            shown = ", ".join(f"{instant:%Y-%m-%dT%H:%MZ}" for instant in instants[:MAX_EXAMPLES])
            more = f" and {len(instants) - MAX_EXAMPLES} more" if len(instants) > MAX_EXAMPLES else ""
            parts.append(f"{where}: {shown}{more}")
    return f"{difference.job.name} fires at other times within {days} days: {'; '.join(parts)}"
