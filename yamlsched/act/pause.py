"""Pausing and resuming jobs. No slots and no claims while a job is paused; a deploy does not end a
pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import psycopg
from psycopg.pq import TransactionStatus

from yamlsched.act import audit
from yamlsched.act.audit import ActionRecord
from yamlsched.act.runs import ActionResult, retry_on_deadlock
from yamlsched.db.query import execute, fetch_column
from yamlsched.errors import Refused
from yamlsched.sync import definitions, slot_plan
from yamlsched.sync.definitions import Definition
from yamlsched.sync.due import account_for_owed_slots
from yamlsched.timetable import times
from yamlsched.timetable.times import TimeInput
from yamlsched.timetable.zones import zone

BATCH_RUNS = 5_000


class PauseChange(NamedTuple):
    """A job as it is to be, None if it stays as it is; what to say, and the detail of the trail."""

    job: Definition | None
    what: str
    detail: dict[str, Any]


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
    where = zone(timezone)

    def change(job: Definition, instant: datetime) -> PauseChange:
        end = _read_end(until, where, instant)
        if job.retired_at is not None:
            what = "was removed from schedules.yaml: there is nothing to pause"
            return PauseChange(None, what, {})
        is_paused = job.is_paused(instant)
        after = replace(
            job,
            paused_at=job.paused_at if is_paused else instant,
            paused_until=job.paused_until if is_paused and end is None else end,
            paused_by=who,
            paused_reason=job.paused_reason if is_paused and reason is None else reason,
        )
        detail = {"reason": reason, "until": end.isoformat() if end else None}
        return PauseChange(after, _paused(after, is_paused, where), detail)

    return _change(connection, namespace, ids, "pause", who, change, now)


def _read_end(until: TimeInput | None, where: ZoneInfo, now: datetime) -> datetime | None:
    """Return the end of a pause. Raises Refused if it has passed."""
    if until is None:
        return None
    end = times.resolve(until, lambda: where, now, is_future=True)
    if end <= now:
        local_end = times.show(end, where)
        raise Refused(f"the pause would have ended at {local_end} already: pass a later --until")
    return end


def _paused(job: Definition, was_paused: bool, where: ZoneInfo) -> str:
    """Describe the pause of a job that is in effect now."""
    end = job.paused_until
    until = f"resumed: yamlsched resume {job.job_type}" if end is None else times.show(end, where)
    reason = f"; reason: {job.paused_reason}" if was_paused and job.paused_reason else ""
    return f"{'remains' if was_paused else 'is'} paused, until {until}{reason}"


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

    def change(job: Definition, instant: datetime) -> PauseChange:
        if job.paused_at is None:
            return PauseChange(None, "is not paused", {})
        ended = "had already resumed when its pause ended; the pause is cleared"
        what = "resumed" if job.is_paused(instant) else ended
        after = replace(job, paused_at=None, paused_until=None, paused_by=None, paused_reason=None)
        return PauseChange(after, what, {"was": job.paused_reason})

    return _change(connection, namespace, ids, "resume", who, change, now)


def paused(connection: psycopg.Connection[Any], ids: Sequence[int]) -> list[int]:
    """Return those of the jobs ``ids`` that were paused and not resumed, even if the pause has
    ended.
    """
    return [job.id for job in definitions.read(connection, ids) if job.paused_at is not None]


def _change(
    connection: psycopg.Connection[Any],
    namespace: str,
    ids: Sequence[int],
    verb: str,
    who: str,
    change: Callable[[Definition, datetime], PauseChange],
    now: datetime | None,
) -> list[ActionResult]:
    """Write and record what ``change`` makes of the pauses of jobs; return the results by name."""

    def attempt() -> list[ActionResult]:
        with connection.transaction():
            instant, jobs, _ = account_for_owed_slots(connection, namespace, list(ids), now)
            jobs.sort(key=lambda job: job.job_type)
            changes = [change(job, instant) for job in jobs]
            changed = [job for job, _, _ in changes if job is not None]
            execute(connection, "actions.set_pauses", **_columns(changed, instant))
            records = [
                ActionRecord(namespace, f"job:{job.job_type}", job.job_type, detail)
                for job, _, detail in changes
                if job is not None
            ]
            audit.record(connection, who, verb, records, instant)
            audit.wake(connection, [namespace])
        return [
            ActionResult(job.job_type, after is not None, what)
            for job, (after, what, _) in zip(jobs, changes, strict=True)
        ]

    results = retry_on_deadlock(attempt)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        mark(connection, namespace, ids, now)
    return results


def _columns(jobs: Sequence[Definition], now: datetime) -> dict[str, Any]:
    """Return the parameters of the statement that writes the pauses of ``jobs``."""
    return {
        "ids": [job.id for job in jobs],
        "starts": [job.paused_at for job in jobs],
        "ends": [job.paused_until for job in jobs],
        "whos": [job.paused_by for job in jobs],
        "reasons": [job.paused_reason for job in jobs],
        "nexts": [slot_plan.next_slot_at(job, now) for job in jobs],
        "now": now,
    }


def mark(
    connection: psycopg.Connection[Any],
    namespace: str,
    ids: Iterable[int],
    now: datetime | None = None,
) -> None:
    """Block the due runs of those of the jobs ``ids`` that are closed, and offer those of the
    others, in batches.

    Each is a transaction of its own. What other sessions have locked is left to claims and to the
    sweep.
    """

    def call(statement: str, **values: Any) -> Any:
        parameters = {"namespace": namespace, "now": now, **values}
        [value] = retry_on_deadlock(partial(fetch_column, connection, statement, **parameters))
        return value

    for job in ids:
        last = 0
        while last is not None:
            last = call("actions.block_closed", job=job, past=last, most=BATCH_RUNS)
        gates = [f"closed/{job}", f"job/{job}"]
        while call("runs.promote", names=gates) >= BATCH_RUNS:
            gates = gates[:1]
