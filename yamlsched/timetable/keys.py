"""The idempotency key of a slot, and how far ``spread`` moves its start.

Never change the key: a slot with another one would get a second run. See docs/time.md.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from yamlsched.timetable.cron import Cron
from yamlsched.timetable.slots import Slot, next_slot
from yamlsched.timetable.times import rfc3339


def slot_key(job_name: str, cron: Cron, slot: Slot) -> str:
    """Return the key of a slot: ``job:YYYY-MM-DD`` for a daily job, else ``job:YYYY-MM-DDTHH:MMZ``.

    The date is the local one that the expression names, so that a clock change does not move it.
    The minute is UTC, so that the two passes of a repeated hour have different keys.
    """
    return date_key(job_name, slot.nominal) if is_daily(cron) else minute_key(job_name, slot.at)


def date_key(job_name: str, local: datetime) -> str:
    return f"{job_name}:{local.date().isoformat()}"


def minute_key(job_name: str, at: datetime) -> str:
    return f"{job_name}:{rfc3339(at, 'minutes')}"


def is_daily(cron: Cron) -> bool:
    """Return whether keys have dates: ``cron`` can fire at most once per local date, and is not a
    list.
    """
    return not cron.wildcard and len(cron.times) == 1 and not cron.parts


SECOND = timedelta(seconds=1)

_next = lru_cache(maxsize=16384)(next_slot)


@lru_cache(maxsize=4096)
def offset(namespace: str, job_type: str, spread: timedelta) -> timedelta:
    """Return by how much ``spread`` moves the runs of a job: whole seconds in [0, spread), from a
    hash of its name.

    In another namespace than "default" it is of both names: hosts with namespaces of their own have
    the same jobs.
    """
    seconds = int(spread.total_seconds())
    if seconds <= 0:
        return timedelta(0)
    name = job_type if namespace == "default" else f"{namespace}/{job_type}"
    digest = hashlib.sha256(name.encode()).digest()
    return timedelta(seconds=int.from_bytes(digest[:8], "big") % seconds)


def run_at(offset: timedelta, cron: Cron, zone: ZoneInfo, slot_at: datetime) -> datetime:
    """Return when the run of the slot ``slot_at`` is due, always before the job's next slot.

    The file limits ``spread`` to the smallest gap on the wall clock; a clock change can make one
    gap shorter.
    """
    moved = slot_at + offset
    following = _next(cron, zone, slot_at) if moved > slot_at else None
    return min(moved, following.at - SECOND) if following else moved
