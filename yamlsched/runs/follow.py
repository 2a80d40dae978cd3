"""Runs of jobs that follow others: whether each is released, waits, or becomes a gap. Pure; see
docs/follow.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple


class State(StrEnum):
    """What became of what a slot waits for."""

    WAITING = "waiting"  # its run is unfinished, or not created yet
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # there is no run, and will be none


class Upstream(NamedTuple):
    """What a slot waits for: the run of a job, and if it ended, when.

    With ``after_enqueued``, ``job`` and ``run_id`` may be those of a run that it has enqueued, and
    is dead. ``upstream_run_id`` and ``outcome`` are those of the awaited job.
    """

    id: int
    job: str
    state: str
    run_id: int | None = None
    ended_at: datetime | None = None
    upstream_run_id: int | None = None
    outcome: str = ""


class UnreleasedRun(NamedTuple):
    """A run that is not released. ``run_at`` is its slot plus ``spread``."""

    id: int
    slot: datetime
    run_at: datetime
    upstreams: tuple[Upstream, ...]
    is_backfilled: bool = False


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
    CANCEL = "cancel"  # the same for one that a backfill has created


class Decision(NamedTuple):
    """What becomes of a run. ``run_at`` is when it was due; ``reason`` and ``detail`` are those of
    a gap. ``awaited`` is the first job whose slot it waits for; None: a run of its own job.
    """

    run: UnreleasedRun
    verdict: SlotDecision
    run_at: datetime
    reason: str = ""
    detail: str | None = None
    awaited: int | None = None


class _Outlook(NamedTuple):
    """What a run waits for, the first of it, since when it is due, and what rules it out. ``ended``
    is dead or cancelled.
    """

    run: UnreleasedRun
    waits_for: frozenset[tuple[int, int | None]]
    awaited: int | None
    due_at: datetime
    failed: Upstream | None
    ended: Upstream | None
    is_late: bool


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
        run, awaited = outlook.run, outlook.awaited
        is_due = not outlook.waits_for and outlook.due_at <= now
        has_to_wait = is_due and is_busy and not run.is_backfilled
        reason, detail = "", None
        if outlook.is_late:
            reason = "late"
        elif rules.catchup != "all" and _is_superseded(outlook, outlooks[number + 1 :], now):
            reason, detail = "superseded", _named(outlook.ended)
        elif outlook.failed:
            reason, detail = "upstream", _named(outlook.failed)
        elif has_to_wait and rules.overlap == "skip":
            reason = "overlap"
        if reason:
            verdict = SlotDecision.CANCEL if run.is_backfilled else SlotDecision.SKIP
        elif outlook.waits_for or (has_to_wait and rules.overlap == "wait"):
            verdict = SlotDecision.WAIT
        elif not is_due:
            verdict = SlotDecision.NOT_YET
        else:
            verdict = SlotDecision.RELEASE
            is_busy = is_busy or rules.overlap != "allow"
        decisions.append(Decision(run, verdict, outlook.due_at, reason, detail, awaited))
    return decisions


def _named(upstream: Upstream | None) -> str | None:
    """Return what a slot waited for as ``skipped_slots.detail`` has it."""
    return upstream and upstream.job + (f":{upstream.run_id}" if upstream.run_id else "")


def _outlook(rules: Rules, run: UnreleasedRun, now: datetime) -> _Outlook:
    failed, ended, awaited, waits_for, due_at = None, None, None, set(), run.run_at
    for upstream in run.upstreams:
        has_ended = upstream.state in (State.DEAD, State.CANCELLED)
        if has_ended:
            ended = ended or upstream
        if upstream.state == State.WAITING or (has_ended and rules.on_upstream_failure == "wait"):
            waits_for.add((upstream.id, upstream.run_id))
            awaited = awaited or upstream.id
        elif upstream.state != State.SUCCEEDED and rules.on_upstream_failure != "run":
            failed = failed or upstream
        elif upstream.ended_at is not None:
            due_at = max(due_at, upstream.ended_at)
    is_late = now - run.run_at > rules.catchup_window and not run.is_backfilled
    return _Outlook(run, frozenset(waits_for), awaited, due_at, failed, ended, is_late)


def _is_superseded(outlook: _Outlook, newer: Iterable[_Outlook], now: datetime) -> bool:
    """Return whether a newer slot takes the place of a run: one that is due, or waits for nothing
    else than it does.
    """
    return not outlook.run.is_backfilled and any(
        (other.waits_for <= outlook.waits_for or (not other.waits_for and other.due_at <= now))
        for other in newer
        if not (other.run.is_backfilled or other.is_late or other.failed)
    )
