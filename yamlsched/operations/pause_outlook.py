"""What a pause, or its end, would lead to, before an operator confirms it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import psycopg

from yamlsched import times
from yamlsched.cron.expression import parse_cron
from yamlsched.runs import Status
from yamlsched.slots import slots
from yamlsched.store import actions
from yamlsched.store.actions import PausableJob
from yamlsched.store.definitions import Definition
from yamlsched.zones import zone

MAX_COUNTED = 1_000
MAX_LISTED_SLOTS = 10
WAITING = (Status.QUEUED, Status.FAILED)


@dataclass(frozen=True)
class PauseOutlook:
    """The pause that is in effect, the slots in a span, and the runs that wait.

    Of slots and of runs at most ``MAX_COUNTED`` + 1 are counted. ``first_slots`` are the first of them.
    """

    pause: PausableJob | None
    slots: int
    first_slots: Sequence[datetime]
    waiting_runs: int
    running_runs: int


def read(
    connection: psycopg.Connection[object], namespace: str, job: Definition, start: datetime, end: datetime | None
) -> PauseOutlook:
    """Return what a pause of ``job`` in (start, end] concerns. Without an end, the first slots are not counted."""
    found = list(islice(_slots(job, start, end), MAX_LISTED_SLOTS if end is None else MAX_COUNTED + 1))
    [state] = actions.jobs(connection, [job.id], None)
    waiting = actions.open_ids(connection, namespace, job.id, WAITING, None, MAX_COUNTED + 1)
    running = actions.open_ids(connection, namespace, job.id, [Status.RUNNING], None, MAX_COUNTED + 1)
    return PauseOutlook(
        pause=state if state.is_paused else None,
        slots=0 if end is None else len(found),
        first_slots=found[:MAX_LISTED_SLOTS],
        waiting_runs=len(waiting),
        running_runs=len(running),
    )


def _slots(job: Definition, start: datetime, end: datetime | None) -> Iterator[datetime]:
    if job.schedule is None or not job.enabled or job.retired_at is not None:
        return
    until = end or start.replace(year=min(start.year + 50, times.MAX_YEAR), day=1)
    for slot in slots(parse_cron(job.schedule), zone(job.timezone), start, until):
        yield slot.at


def words(pause: PausableJob, timezone: str) -> str:
    """Return a pause as a clause: "by maria, until ..., because: ..."."""
    end = pause.paused_until
    until = f"until {times.show(end, zone(timezone))}" if end else "until it is resumed"
    who = f"by {pause.paused_by}, " if pause.paused_by else ""
    return f"{who}{until}" + (f"; reason: {pause.paused_reason}" if pause.paused_reason else "")
