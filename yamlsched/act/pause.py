"""Pausing and resuming jobs. No slots and no claims while a job is paused; a deploy does not end a
pause.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from psycopg.pq import TransactionStatus

from yamlsched.act import audit
from yamlsched.act.audit import ActionRecord
from yamlsched.act.runs import ActionResult, retry_on_deadlock
from yamlsched.db.query import fetch, fetch_column, load
from yamlsched.errors import Refused
from yamlsched.sync import slot_plan
from yamlsched.sync.due import account_for_owed_slots
from yamlsched.timetable import times
from yamlsched.timetable.times import TimeInput
from yamlsched.timetable.zones import zone

BATCH_RUNS = 5_000
MAX_PASSES = 20
"""A claim may hold a waiting run for a moment: ``mark`` comes back for it so often."""
PASS_PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class PausableJob:
    """A job and its pause."""

    id: int
    job_type: str
    retired_at: datetime | None
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    now: datetime

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and (
            self.paused_until is None or self.paused_until > self.now
        )


def pause(
    connection: psycopg.Connection[Any],
    namespace: str,
    ids: Sequence[int],
    who: str,
    *,
    reason: str | None = None,
    until: TimeInput | None = None,
    timezone: str = "UTC",
    now: datetime | None = None,
) -> list[ActionResult]:
    """Pause the jobs ``ids`` until ``until`` or ``resume``; running runs continue.

    Without an offset, ``until`` is read in ``timezone``, in which the results show it. Of a pause
    that is in effect, only the given parts change. Slots due before now are accounted for first.
    Raises Refused if ``until`` has passed.

    Once that is committed, no run of the jobs is claimed, and ``mark`` takes those that wait out of
    the way of claims. It is left to the caller if this is part of a transaction.
    """

    def attempt() -> list[ActionResult]:
        with connection.transaction():
            instant, definitions, _ = account_for_owed_slots(connection, namespace, list(ids), now)
            end = None
            if until is not None:
                end = times.resolve(until, lambda: zone(timezone), instant, is_future=True)
            if end is not None and end <= instant:
                local_end = times.show(end, zone(timezone))
                raise Refused(
                    f"the pause would have ended at {local_end} already: write a later --until"
                )
            before = pausable_jobs(connection, ids, instant)
            ends = {
                job.id: job.paused_until if end is None and job.is_paused else end for job in before
            }
            nexts = {
                d.id: slot_plan.next_slot_of(
                    replace(d, paused_at=instant, paused_until=ends[d.id]), instant
                )
                for d in definitions
            }
            changed = _change(
                connection,
                "pause",
                nexts,
                {"who": who, "reason": reason, "until": end, "now": instant},
            )
            after = {job.id: job for job in pausable_jobs(connection, ids, instant)}
            detail = {"reason": reason, "until": end.isoformat() if end else None}
            records = [_record(namespace, job, detail) for job in before if job.id in changed]
            audit.record(connection, who, "pause", records, instant)
        return [
            ActionResult(
                job.job_type, job.id in changed, _paused(job, after[job.id], zone(timezone))
            )
            for job in before
        ]

    results = retry_on_deadlock(attempt)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        mark(connection, namespace, _unmarked(connection, ids, now), now)
    return results


def _paused(before: PausableJob, after: PausableJob, where: ZoneInfo) -> str:
    """Describe the pause of a job that is in effect now."""
    if after.retired_at is not None:
        return "was removed from schedules.yaml: there is nothing to pause"
    end = after.paused_until
    until = (
        times.show(end, where) if end is not None else f"resumed: yamlsched resume {after.job_type}"
    )
    reason = f"; reason: {after.paused_reason}" if before.is_paused and after.paused_reason else ""
    return f"{'remains' if before.is_paused else 'is'} paused, until {until}{reason}"


def resume(
    connection: psycopg.Connection[Any],
    namespace: str,
    ids: Sequence[int],
    who: str,
    *,
    now: datetime | None = None,
) -> list[ActionResult]:
    """Resume the paused jobs ``ids``. The slots of the pause are recorded as skipped, and not run.

    ``mark``, as after ``pause``, has claims look at what waited. If it is cut off, the sweep of a
    worker or tick continues.
    """

    def attempt() -> list[ActionResult]:
        with connection.transaction():
            instant, definitions, _ = account_for_owed_slots(connection, namespace, list(ids), now)
            before = pausable_jobs(connection, ids, instant)
            nexts = {
                d.id: slot_plan.next_slot_of(replace(d, paused_at=None, paused_until=None), instant)
                for d in definitions
            }
            changed = _change(connection, "resume", nexts, {"now": instant})
            records = [
                _record(namespace, job, {"was": job.paused_reason})
                for job in before
                if job.id in changed
            ]
            audit.record(connection, who, "resume", records, instant)
            if changed:
                audit.wake(connection, [namespace])
        return [
            ActionResult(job.job_type, job.id in changed, _resumed(job, job.id in changed))
            for job in before
        ]

    results = retry_on_deadlock(attempt)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        mark(connection, namespace, ids, now)
    return results


def pausable_jobs(
    connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None
) -> list[PausableJob]:
    """Return the jobs ``ids`` by name."""
    return fetch(connection, PausableJob, load("actions")["jobs"], {"ids": list(ids), "now": now})


def mark(
    connection: psycopg.Connection[Any],
    namespace: str,
    ids: Sequence[int],
    now: datetime | None = None,
) -> None:
    """Block the due runs of those of the jobs ``ids`` that are closed, and offer those of the
    others, in batches.

    Each is a transaction of its own. What other sessions have locked for longer is left to claims
    and to the sweep.
    """
    jobs = list(ids)
    for passed in range(MAX_PASSES):
        if not jobs:
            return
        time.sleep(PASS_PAUSE_SECONDS if passed else 0)
        for job in jobs:
            _block(connection, namespace, job, now)
            _offer(connection, namespace, job, now)
        jobs = _unmarked(connection, jobs, now)


def _block(
    connection: psycopg.Connection[Any], namespace: str, job: int, now: datetime | None
) -> None:
    last, sql = 0, load("actions")["block_closed"]
    while last is not None:
        values = {
            "namespace": namespace,
            "most": BATCH_RUNS,
            "now": now,
            "job": job,
            "past": last,
        }
        [last] = retry_on_deadlock(partial(fetch_column, connection, sql, values))


def _offer(
    connection: psycopg.Connection[Any], namespace: str, job: int, now: datetime | None
) -> None:
    names, sql, offered = [f"closed/{job}", f"job/{job}"], load("runs")["promote"], BATCH_RUNS
    while offered >= BATCH_RUNS:
        values = {"namespace": namespace, "names": names, "now": now}
        [offered] = retry_on_deadlock(partial(fetch_column, connection, sql, values))
        names = names[:1]


def _unmarked(
    connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None
) -> list[int]:
    return fetch_column(connection, load("actions")["unmarked"], {"ids": list(ids), "now": now})


def _resumed(job: PausableJob, changed: bool) -> str:
    if not changed:
        return "is not paused"
    return (
        "resumed"
        if job.is_paused
        else "had already resumed when its pause ended; the pause is cleared"
    )


def paused(connection: psycopg.Connection[Any], ids: Sequence[int]) -> list[int]:
    """Return those of the jobs ``ids`` that were paused and not resumed, even if the pause has
    ended.
    """
    return [job.id for job in pausable_jobs(connection, ids, None) if job.paused_at is not None]


def _change(
    connection: psycopg.Connection[Any],
    name: str,
    nexts: dict[int, datetime | None],
    parameters: dict[str, Any],
) -> set[int]:
    """Write the pauses of jobs; ``nexts`` has the next slot of each to account for. Return the ids
    of those changed.
    """
    parameters = {**parameters, "ids": list(nexts), "nexts": list(nexts.values())}
    return set(fetch_column(connection, load("actions")[name], parameters))


def _record(namespace: str, job: PausableJob, detail: dict[str, Any]) -> ActionRecord:
    return ActionRecord(namespace, f"job:{job.job_type}", job.job_type, detail)
