"""Runs of jobs that follow others: whether each is released, waits, or becomes a gap. See
docs/follow.md.

``decide`` is the rule, and pure. ``settle`` applies it to the database, for a claim that meets such
a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.connection import reason
from yamlsched.db.query import load
from yamlsched.errors import ScheduleError
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.slots import newest_slot
from yamlsched.timetable.zones import zone

MAX_JOBS = 500
"""Jobs that are decided about in one transaction."""


class State(StrEnum):
    """What became of what a slot waits for."""

    WAITING = "waiting"  # its run is unfinished, or not created yet
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # there is no run, and will be none


class Upstream(NamedTuple):
    """What a slot waits for: the run of a job, and if it ended, when."""

    id: int
    job: str
    state: str
    run_id: int | None = None
    ended_at: datetime | None = None


class UnreleasedRun(NamedTuple):
    """A run that is not released. ``run_at`` is its slot plus ``spread``. ``by_hand``: a backfill
    has created it.
    """

    id: int
    slot: datetime
    run_at: datetime
    upstreams: tuple[Upstream, ...]
    by_hand: bool = False


class Rules(NamedTuple):
    """The keys of a job that decide."""

    overlap: str = "wait"
    catchup: str = "latest"
    catchup_window: timedelta = timedelta(days=365)
    on_upstream_failure: str = "wait"


class SlotDecision(StrEnum):
    """What becomes of a run."""

    RELEASE = "release"
    WAIT = "wait"  # for an upstream, or for a run of its own job
    NOT_YET = "not_yet"  # it waits for its time only
    SKIP = "skip"  # its slot becomes a gap
    CANCEL = "cancel"  # the same for one that was created by hand


class Decision(NamedTuple):
    """What becomes of a run. ``run_at`` is when it was due; ``reason`` and ``detail`` are those of
    a gap.
    """

    run: UnreleasedRun
    verdict: SlotDecision
    run_at: datetime
    reason: str = ""
    detail: str | None = None


class _Outlook(NamedTuple):
    """What a run waits for, since when it is due, and what rules it out. ``ended`` is dead or
    cancelled.
    """

    run: UnreleasedRun
    waits_for: frozenset[tuple[int, int | None]]
    due_at: datetime
    failed: Upstream | None
    ended: Upstream | None
    is_late: bool

    def is_due(self, now: datetime) -> bool:
        return not self.waits_for and self.due_at <= now


def decide(
    rules: Rules, runs: Sequence[UnreleasedRun], is_busy: bool, now: datetime
) -> list[Decision]:
    """Return what becomes of all runs of a job that are not released, oldest slot first.

    ``is_busy``: a released run of the job that excludes others is unfinished. Of reasons that apply
    at one moment, the first counts: late, superseded, upstream, overlap.
    """
    outlooks = [_outlook(rules, run, now) for run in sorted(runs, key=attrgetter("slot", "id"))]
    decisions = []
    for number, outlook in enumerate(outlooks):
        run = outlook.run
        reason, detail = "", None
        if outlook.is_late:
            reason = "late"
        elif (
            rules.catchup != "all"
            and not run.by_hand
            and _is_superseded(outlook, outlooks[number + 1 :], now)
        ):
            reason, detail = "superseded", _named(outlook.ended)
        elif outlook.failed:
            reason, detail = "upstream", _named(outlook.failed)
        elif outlook.is_due(now) and is_busy and not run.by_hand and rules.overlap == "skip":
            reason = "overlap"
        if reason:
            verdict = SlotDecision.CANCEL if run.by_hand else SlotDecision.SKIP
        elif outlook.waits_for or (
            outlook.is_due(now) and is_busy and rules.overlap == "wait" and not run.by_hand
        ):
            verdict = SlotDecision.WAIT
        elif not outlook.is_due(now):
            verdict = SlotDecision.NOT_YET
        else:
            verdict = SlotDecision.RELEASE
            is_busy = is_busy or rules.overlap != "allow"
        decisions.append(Decision(run, verdict, outlook.due_at, reason, detail))
    return decisions


def _named(upstream: Upstream | None) -> str | None:
    """Return what a slot waited for as ``skipped_slots.detail`` has it."""
    return upstream and upstream.job + (f":{upstream.run_id}" if upstream.run_id else "")


def _outlook(rules: Rules, run: UnreleasedRun, now: datetime) -> _Outlook:
    failed, ended, waits_for, due_at = None, None, set(), run.run_at
    for upstream in run.upstreams:
        has_ended = upstream.state in (State.DEAD, State.CANCELLED)
        if has_ended:
            ended = ended or upstream
        if upstream.state == State.WAITING or (has_ended and rules.on_upstream_failure == "wait"):
            waits_for.add((upstream.id, upstream.run_id))
        elif upstream.state != State.SUCCEEDED and rules.on_upstream_failure != "run":
            failed = failed or upstream
        elif upstream.ended_at is not None:
            due_at = max(due_at, upstream.ended_at)
    is_late = now - run.run_at > rules.catchup_window
    return _Outlook(run, frozenset(waits_for), due_at, failed, ended, is_late and not run.by_hand)


def awaited(rules: Rules, run: UnreleasedRun) -> int | None:
    """Return the first job whose slot a run waits for; None: a run of its own job, or its time."""
    ended = (State.DEAD, State.CANCELLED) if rules.on_upstream_failure == "wait" else ()
    return next((up.id for up in run.upstreams if up.state in (State.WAITING, *ended)), None)


def _is_superseded(outlook: _Outlook, newer: Iterable[_Outlook], now: datetime) -> bool:
    """Return whether a newer slot takes the place of a run: one that is due, or waits for nothing
    else than it does.
    """
    return any(
        not other.run.by_hand
        and not other.is_late
        and not other.failed
        and (other.is_due(now) or other.waits_for <= outlook.waits_for)
        for other in newer
    )


class Settlement(NamedTuple):
    """How many runs were released, how many of those had to wait for nothing, and the jobs that are
    left.

    Another session has a gate of ``busy`` jobs. ``failed`` are errors by job.
    """

    released: int = 0
    repaired: int = 0
    busy: frozenset[int] = frozenset()
    failed: tuple[tuple[int, str], ...] = ()

    def plus(self, other: Settlement) -> Settlement:
        return Settlement(
            self.released + other.released,
            self.repaired + other.repaired,
            self.busy | other.busy,
            self.failed + other.failed,
        )


async def settle(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    jobs: Collection[int] | None = None,
    now: datetime | None = None,
) -> Settlement:
    """Decide about the runs of ``jobs`` that are not released, in batches; None: of all jobs, as a
    repair.

    Without ``jobs``, slots whose runs have not begun within ``catchup_window`` become gaps, of any
    job.

    Waits for no lock: a job of which another session has a gate is left to the next call. So is one
    about which nothing can be written; it holds up no other.
    """
    if jobs is None:
        await _record_late(connection, namespace, now)
        cursor = await connection.execute(
            load("follow")["jobs"], {"namespace": namespace, "now": now}
        )
        jobs = [row.id for row in await cursor.fetchall()]
    todo, result = sorted(jobs), Settlement()
    for start in range(0, len(todo), MAX_JOBS):
        result = result.plus(
            await _settle_each(connection, namespace, todo[start : start + MAX_JOBS], now)
        )
    return result


async def _record_late(
    connection: psycopg.AsyncConnection[Any], namespace: str, now: datetime | None
) -> None:
    """Make gaps of slots whose runs have not begun in time."""
    async with connection.transaction():
        cursor = await connection.execute(
            load("follow")["late"], {"namespace": namespace, "now": now}
        )
        rows = await cursor.fetchall()
        if not rows:
            return
        changes = _Changes()
        changes.now = rows[0].now
        for row in rows:
            changes.skip(row, row.id, row.slot, "late", None)
        await changes.write(connection, namespace)
        names = sorted({gate for row in rows for gate in row.gates})
        parameters = {"namespace": namespace, "names": names, "now": now}
        await connection.execute(load("runs")["promote"], parameters)


async def _settle_each(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    jobs: Sequence[int],
    now: datetime | None,
) -> Settlement:
    """Decide about the runs of jobs in one transaction; if that fails, in smaller ones."""
    try:
        return await _settle(connection, namespace, jobs, now)
    except psycopg.Error as error:
        if connection.closed or isinstance(error, psycopg.OperationalError):
            raise
        if len(jobs) == 1:
            return Settlement(failed=((jobs[0], reason(error)),))
    middle = len(jobs) // 2
    first = await _settle_each(connection, namespace, jobs[:middle], now)
    return first.plus(await _settle_each(connection, namespace, jobs[middle:], now))


async def _settle(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    jobs: Sequence[int],
    now: datetime | None,
) -> Settlement:
    sql = load("follow")
    async with connection.transaction():

        async def rows(name: str, **extra: Any) -> list[Any]:
            return await (
                await connection.execute(sql[name], {"namespace": namespace, "now": now, **extra})
            ).fetchall()

        ids = [row.id for row in await rows("hold", jobs=jobs)]
        if not ids:
            return Settlement()
        gates = {row.name for row in await rows("gates", ids=ids)}
        facts = await rows("facts", ids=ids)
        by_job = {job: list(group) for job, group in groupby(facts, attrgetter("definition_id"))}
        free = {job: group for job, group in by_job.items() if _gates(job, group) <= gates}
        released = repaired = 0
        changes = _Changes()
        for group in free.values():
            waited = {row.id for row in group if (row.blocked_on or "").startswith("after/")}
            for decision in changes.add(group):
                released += decision.verdict is SlotDecision.RELEASE
                repaired += decision.verdict is SlotDecision.RELEASE and decision.run.id in waited
        await changes.write(connection, namespace)
        return Settlement(released, repaired, frozenset(by_job.keys() - free.keys()))


def _gates(job: int, facts: Iterable[Any]) -> set[str]:
    """Return the gates under which is decided about the runs of a job."""
    upstreams = (row.upstream_id for row in facts if row.upstream_id)
    return {f"closed/{job}", *(f"after/{id}" for id in (job, *upstreams))}


class _Changes:
    """What ``settle`` writes, for all jobs at once."""

    def __init__(self) -> None:
        self.released: list[Decision] = []
        self.blocked: dict[int, str | None] = {}  # gates by run
        self.cancelled: dict[int, Any] = {}
        self.gaps: list[tuple[Any, ...]] = []
        self.removed: list[int] = []
        self.ended_of: set[int] = set()  # jobs of which a slot is decided: others may wait for it
        self.now: datetime | None = None

    def add(self, facts: list[Any]) -> list[Decision]:
        """Decide about the runs of one job, whose ``facts`` are rows of that statement."""
        job = facts[0]
        self.now = job.now
        runs = []
        for _, group in groupby(facts, attrgetter("id")):
            rows = list(group)
            upstreams = tuple(
                Upstream(
                    row.upstream_id, row.upstream, row.state, row.upstream_run_id, row.ended_at
                )
                for row in rows
                if row.upstream_id
            )
            runs.append(
                UnreleasedRun(rows[0].id, rows[0].slot, rows[0].run_at, upstreams, rows[0].by_hand)
            )
        if job.is_closed:
            self.blocked |= {run.id: f"closed/{job.definition_id}" for run in runs}
            return []
        rules = Rules(job.overlap, job.catchup, job.catchup_window, job.on_upstream_failure)
        decisions = decide(rules, runs, job.is_busy, job.now)
        for decision in decisions:
            run = decision.run
            match decision.verdict:
                case SlotDecision.RELEASE:
                    self.released.append(decision)
                case SlotDecision.WAIT:
                    self.blocked[run.id] = f"after/{awaited(rules, run) or job.definition_id}"
                case SlotDecision.NOT_YET:
                    self.blocked[run.id] = None
                case SlotDecision.CANCEL:
                    self.cancelled[run.id] = (
                        f"waited for {decision.detail}" if decision.detail else decision.reason
                    )
                    self.ended_of.add(job.definition_id)
                case SlotDecision.SKIP:
                    self.skip(job, run.id, run.slot, decision.reason, decision.detail)
        return decisions

    def skip(self, job: Any, run_id: int, slot: datetime, reason: str, detail: str | None) -> None:
        """Remove a run, whose slot becomes a gap."""
        gap = (job.definition_id, slot, slot, 1, reason, _slot_before(job, slot), detail)
        self.gaps.append(gap)
        self.removed.append(run_id)
        self.ended_of.add(job.definition_id)

    async def write(self, connection: psycopg.AsyncConnection[Any], namespace: str) -> None:
        sql, parameters = load("follow"), {"namespace": namespace, "now": self.now}
        if self.released:
            ends = [
                (release.run.id, upstream)
                for release in self.released
                for upstream in release.run.upstreams
            ]
            outcomes = {
                "run_id": [run_id for run_id, _ in ends],
                "upstream_id": [upstream.id for _, upstream in ends],
                "upstream_run_id": [upstream.run_id for _, upstream in ends],
                "outcome": [str(upstream.state) for _, upstream in ends],
            }
            ids, run_at = (
                [release.run.id for release in self.released],
                [release.run_at for release in self.released],
            )
            await connection.execute(
                sql["release"], {**parameters, "ids": ids, "run_at": run_at, **outcomes}
            )
        for name, column, values in (
            ("block", "gates", self.blocked),
            ("cancel", "reasons", self.cancelled),
        ):
            if values:
                columns = {"ids": list(values), column: list(values.values())}
                await connection.execute(sql[name], {**parameters, **columns})
        for gap in self.gaps:  # one by one: each may continue the one before
            names = ("definition_id", "first", "last", "slots", "reason", "follows", "detail")
            row = {name: [value] for name, value in zip(names, gap, strict=True)}
            await connection.execute(load("slots")["record_gaps"], {**parameters, **row})
        if self.removed:
            await connection.execute(sql["remove"], {"ids": self.removed})
        if self.ended_of:
            await connection.execute(sql["wake"], {**parameters, "ids": sorted(self.ended_of)})


def _slot_before(job: Any, slot: datetime) -> datetime | None:
    """Return the slot before one; None if this release cannot read the job's expression."""
    try:
        cron, where = parse_schedule(job.schedule), zone(job.timezone)
    except (ScheduleError, TypeError):
        return None
    before = newest_slot(
        cron, where, job.effective_from - timedelta(days=400), slot - timedelta(microseconds=1)
    )
    return before.at if before else None
