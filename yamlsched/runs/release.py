"""Release the runs of jobs that follow others, or make gaps of them, as the rule of follow.py
decides. See docs/follow.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import psycopg

from yamlsched.db.connection import reason
from yamlsched.db.query import AsyncConnection, execute
from yamlsched.errors import ScheduleError
from yamlsched.runs.follow import (
    Decision,
    Rules,
    SlotDecision,
    UnreleasedRun,
    Upstream,
    decide,
)
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.slots import newest_slot
from yamlsched.timetable.zones import zone

MAX_JOBS = 500
"""Jobs that are decided about in one transaction."""


@dataclass
class ReleaseResult:
    """How many runs were released, how many of those had to wait for nothing, and the jobs that are
    left.

    Another session has a gate of ``busy`` jobs. ``failed`` are errors by job.
    """

    released: int = 0
    repaired: int = 0
    busy: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)


async def release_followers(
    connection: AsyncConnection,
    namespace: str,
    jobs: Collection[int] | None = None,
    now: datetime | None = None,
) -> ReleaseResult:
    """Decide about the runs of ``jobs`` that are not released, in batches; None: of all jobs, as a
    repair.

    Without ``jobs``, slots whose runs have not begun within ``catchup_window`` become gaps, of any
    job.

    Waits for no lock: a job of which another session has a gate is left to the next call. So is one
    about which nothing can be written; it holds up no other.
    """
    if jobs is None:
        await _record_late(connection, namespace, now)
        jobs = [row.id for row in await _rows(connection, "jobs", namespace=namespace, now=now)]
    todo, result = sorted(jobs), ReleaseResult()
    batches = deque(todo[start : start + MAX_JOBS] for start in range(0, len(todo), MAX_JOBS))
    while batches:
        batch = batches.popleft()
        try:
            await _release(connection, namespace, batch, now, result)
        except psycopg.Error as error:
            if connection.closed or isinstance(error, psycopg.OperationalError):
                raise
            if len(batch) == 1:
                result.failed[batch[0]] = reason(error)
            else:
                batches.extend([job] for job in batch)
    return result


async def _rows(connection: AsyncConnection, statement: str, **parameters: Any) -> list[Any]:
    cursor = await execute(connection, f"follow.{statement}", **parameters)
    return await cursor.fetchall()


async def _record_late(connection: AsyncConnection, namespace: str, now: datetime | None) -> None:
    """Make gaps of slots whose runs have not begun in time."""
    async with connection.transaction():
        rows = await _rows(connection, "late", namespace=namespace, now=now)
        if not rows:
            return
        changes = _Changes(namespace, rows[0].now)
        for row in rows:
            changes.skip(row, row.id, row.slot, "late", None)
        await changes.write(connection)
        names = sorted({gate for row in rows for gate in row.gates})
        await execute(connection, "runs.promote", namespace=namespace, names=names, now=now)


async def _release(
    connection: AsyncConnection,
    namespace: str,
    jobs: Sequence[int],
    now: datetime | None,
    result: ReleaseResult,
) -> None:
    """Decide about the runs of jobs in one transaction, and add that to ``result``."""
    async with connection.transaction():
        held = await _rows(connection, "hold", namespace=namespace, jobs=jobs)
        ids = [row.id for row in held]
        if not ids:
            return
        rows = await _rows(connection, "gates", namespace=namespace, ids=ids)
        gates = {row.name for row in rows}
        facts = await _rows(connection, "facts", ids=ids, now=now)
        by_job = {job: list(group) for job, group in groupby(facts, attrgetter("definition_id"))}
        busy = {job for job, group in by_job.items() if not _gates(job, group) <= gates}
        changes = _Changes(namespace, facts[0].now)
        for job, group in by_job.items():
            if job not in busy:
                changes.decide(group)
        await changes.write(connection)
    waited = {row.id for row in facts if (row.blocked_on or "").startswith("after/")}
    result.busy |= busy
    result.released += len(changes.released)
    result.repaired += sum(decision.run.id in waited for decision in changes.released)


def _gates(job: int, facts: Iterable[Any]) -> set[str]:
    """Return the gates under which is decided about the runs of a job."""
    upstreams = (row.upstream_id for row in facts if row.upstream_id)
    return {f"closed/{job}", *(f"after/{id}" for id in (job, *upstreams))}


def _unreleased_runs(facts: Iterable[Any]) -> list[UnreleasedRun]:
    """Return the runs of one job, of which ``facts`` has a row for each job that they wait for."""
    runs = []
    for _, group in groupby(facts, attrgetter("id")):
        rows = list(group)
        upstreams = tuple(
            Upstream(
                row.upstream_id,
                row.upstream,
                row.state,
                row.run_id,
                row.ended_at,
                row.upstream_run_id,
                row.outcome,
            )
            for row in rows
            if row.upstream_id
        )
        run = rows[0]
        runs.append(UnreleasedRun(run.id, run.slot, run.run_at, upstreams, run.by_hand))
    return runs


@dataclass
class _Changes:
    """What a transaction writes, for all jobs at once.

    ``gates`` are those at which runs wait, and ``cancelled`` has the reasons, by run. Of ``ended``
    jobs a slot is decided: others may wait for it.
    """

    namespace: str
    now: datetime
    released: list[Decision] = field(default_factory=list)
    gates: dict[int, str | None] = field(default_factory=dict)
    cancelled: dict[int, str] = field(default_factory=dict)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)

    def decide(self, facts: list[Any]) -> None:
        """Decide about the runs of one job, whose ``facts`` are rows of that statement."""
        job, runs = facts[0], _unreleased_runs(facts)
        if job.is_closed:
            self.gates |= {run.id: f"closed/{job.definition_id}" for run in runs}
            return
        rules = Rules(job.overlap, job.catchup, job.catchup_window, job.on_upstream_failure)
        for decision in decide(rules, runs, job.is_busy, job.now):
            run, detail = decision.run, decision.detail
            match decision.verdict:
                case SlotDecision.RELEASE:
                    self.released.append(decision)
                case SlotDecision.WAIT:
                    self.gates[run.id] = f"after/{decision.awaited or job.definition_id}"
                case SlotDecision.NOT_YET:
                    self.gates[run.id] = None
                case SlotDecision.CANCEL:
                    self.cancelled[run.id] = f"waited for {detail}" if detail else decision.reason
                    self.ended.add(job.definition_id)
                case SlotDecision.SKIP:
                    self.skip(job, run.id, run.slot, decision.reason, detail)

    def skip(self, job: Any, run_id: int, slot: datetime, reason: str, detail: str | None) -> None:
        """Remove a run, whose slot becomes a gap."""
        gap = {
            "definition_id": job.definition_id,
            "first": slot,
            "last": slot,
            "slots": 1,
            "reason": reason,
            "follows": _slot_before(job, slot),
            "detail": detail,
        }
        self.gaps.append(gap)
        self.removed.append(run_id)
        self.ended.add(job.definition_id)

    async def write(self, connection: AsyncConnection) -> None:
        common = {"namespace": self.namespace, "now": self.now}
        write: Any = partial(execute, connection, **common)
        upstreams = [(each.run.id, up) for each in self.released for up in each.run.upstreams]
        await write(
            "follow.release",
            ids=[each.run.id for each in self.released],
            run_at=[each.run_at for each in self.released],
            run_id=[run_id for run_id, _ in upstreams],
            upstream_id=[upstream.id for _, upstream in upstreams],
            upstream_run_id=[upstream.upstream_run_id for _, upstream in upstreams],
            outcome=[upstream.outcome for _, upstream in upstreams],
        )
        await write("follow.block", ids=list(self.gates), gates=list(self.gates.values()))
        reasons = list(self.cancelled.values())
        await write("follow.cancel", ids=list(self.cancelled), reasons=reasons)
        for gap in self.gaps:  # one by one: each may continue the one before
            columns = {name: [value] for name, value in gap.items()}
            await write("slots.record_gaps", **columns)
        await write("follow.remove", ids=self.removed)
        await write("follow.wake", ids=sorted(self.ended))


def _slot_before(job: Any, slot: datetime) -> datetime | None:
    """Return the slot before one; None if this release cannot read the job's expression."""
    try:
        cron, where = parse_schedule(job.schedule), zone(job.timezone)
    except (ScheduleError, TypeError):
        return None
    earliest = job.effective_from - timedelta(days=400)
    before = newest_slot(cron, where, earliest, slot - timedelta(microseconds=1))
    return before.at if before else None
