"""When the run of a slot is due: ``spread`` moves it, by the same time each day, whichever host creates it."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from yamlsched.cron.expression import Cron
from yamlsched.slots import next_slot

SECOND = timedelta(seconds=1)

_next = lru_cache(maxsize=16384)(next_slot)


@lru_cache(maxsize=4096)
def offset(namespace: str, job_type: str, spread: timedelta) -> timedelta:
    """Return by how much ``spread`` moves the runs of a job: whole seconds in [0, spread), from a hash of its name.

    In another namespace than "default" it is of both names: hosts with namespaces of their own have the same jobs.
    """
    seconds = int(spread.total_seconds())
    if seconds <= 0:
        return timedelta(0)
    name = job_type if namespace == "default" else f"{namespace}/{job_type}"
    digest = hashlib.sha256(name.encode()).digest()
    return timedelta(seconds=int.from_bytes(digest[:8], "big") % seconds)


def run_at(offset: timedelta, cron: Cron, zone: ZoneInfo, slot_at: datetime) -> datetime:
    """Return when the run of the slot ``slot_at`` is due, always before the job's next slot.

    The file limits ``spread`` to the smallest gap on the wall clock; a clock change can make one gap shorter.
    """
    moved = slot_at + offset
    following = _next(cron, zone, slot_at) if moved > slot_at else None
    return min(moved, following.at - SECOND) if following else moved
