"""Which slots of a job get a run, which are recorded as skipped and why, and where its cursor goes.

The rules are those of docs/catchup.md.

Pure: the instant and what the database knows are arguments. ``owed`` looks at the slots alone; ``decide`` at the runs
and keys that stand in their way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched import slots
from yamlsched.cron.expression import Cron, parse_cron
from yamlsched.keys import slot_key
from yamlsched.slots import Slot
from yamlsched.store.definitions import Definition
from yamlsched.store.slots import CursorMove, Gap, KeyHolder, NewRun
from yamlsched.zones import zone

MAX_CATCHUP_RUNS = 100
"""Runs of one job with ``catchup: all`` that one sync makes: the others wait for the next."""
CATCHUP_NONE_WINDOW = timedelta(minutes=2)
"""With ``catchup: none`` a slot is late when it is this old: a tick comes every minute, and may itself be late."""
MICROSECOND = timedelta(microseconds=1)


class OwedSlots(NamedTuple):
    """The slots to account for now: gaps that are certain, and candidates for a run, oldest first, by key."""

    definition: Definition
    gaps: list[Gap]
    candidates: list[tuple[str, Slot]]
    last_slot_at: datetime | None
    next_slot_at: datetime | None


class SlotPlan(NamedTuple):
    """What accounts for a job's slots. All of it is written in one transaction, or nothing."""

    runs: list[NewRun]
    gaps: list[Gap]
    move: CursorMove


class DueSlots(NamedTuple):
    """Slots of a span: those to run, those that the newest supersedes; and the first that is left for later."""

    candidates: tuple[Slot, ...]
    superseded: slots.Span | None = None
    following: Slot | None = None


def next_slot_at(
    schedule: str | None, timezone: str, after: datetime, paused_at: datetime | None, paused_until: datetime | None
) -> datetime | None:
    """Return the first slot after ``after`` that a sync must account for by itself; None if there is none.

    A pause with an end defers that to the first slot after it, one without an end until the job is resumed.
    """
    if schedule is None or (paused_at is not None and paused_until is None):
        return None
    if paused_at is not None and paused_until is not None:
        after = max(after, paused_until)
    slot = _next(parse_cron(schedule), zone(timezone), after)
    return slot.at if slot else None


def next_slot_of(definition: Definition, after: datetime) -> datetime | None:
    """Return ``next_slot_at`` of a definition that is accounted for up to ``after``."""
    if definition.retired_at is not None or not definition.enabled:
        return None
    return next_slot_at(definition.schedule, definition.timezone, after, definition.paused_at, definition.paused_until)


def owed_slots(definition: Definition, now: datetime, is_closing: bool = False) -> OwedSlots:
    """Return what a definition owes in (accounted_to, now].

    ``is_closing`` is for a definition about to be changed: everything is accounted for at once, so that what was due
    under the old definition is not lost and the new one begins with a clean slate.
    """
    base = definition.accounted_to
    if definition.schedule is None or now <= base:
        return OwedSlots(definition, [], [], definition.last_slot_at, next_slot_of(definition, max(now, base)))
    cron, where = parse_cron(definition.schedule), zone(definition.timezone)

    gaps: list[Gap] = []
    start = base
    for reason, until in _blanket_skips(definition, now):
        if until > start:
            span = _span(cron, where, start, until)
            if span:
                gaps.append(Gap(definition.id, definition.job_type, span.first, span.last, span.count, reason))
            start = until

    found: tuple[Slot, ...] = ()
    if start < now:
        limit = MAX_CATCHUP_RUNS if definition.catchup == "all" and not is_closing else None
        due = _due_slots(cron, where, start, now, definition.catchup == "latest", limit)
        found, following = due.candidates, due.following.at if due.following else None
        if due.superseded:
            first, last, count = due.superseded.first, due.superseded.last, due.superseded.count
            gaps.append(Gap(definition.id, definition.job_type, first, last, count, "superseded"))
    else:
        following = next_slot_of(definition, now)
    if gaps:
        gaps[0] = gaps[0]._replace(follows=definition.last_slot_at)

    accounted = found[-1].at if found else gaps[-1].last if gaps else definition.last_slot_at
    keyed = [(slot_key(definition.job_type, cron, slot), slot) for slot in found]
    return OwedSlots(definition, gaps, keyed, accounted, following)


def owed_by_unreadable(definition: Definition, now: datetime) -> OwedSlots:
    """Return what stands for the slots of a definition that cannot be read, and is about to be changed.

    Nobody knows its slots but the next one. From that to the minute of ``now`` it is one gap, counted as one slot.
    """
    first = definition.next_slot_at
    if first is None or first > now:
        return OwedSlots(definition, [], [], definition.last_slot_at, first)
    last = max(first, now.replace(second=0, microsecond=0))
    gap = Gap(definition.id, definition.job_type, first, last, 1, "late")
    return OwedSlots(definition, [gap], [], last, None)


def _blanket_skips(definition: Definition, now: datetime) -> list[tuple[str, datetime]]:
    """Return the reasons for which slots are skipped whatever runs there are, in order, and up to when each holds."""
    if definition.retired_at is not None:
        return [("retired", now)]
    if not definition.enabled:
        return [("disabled", now)]
    reasons = []
    if definition.paused_at is not None:
        reasons.append(("paused", min(definition.paused_until or now, now)))
    late = now - definition.catchup_window - MICROSECOND
    if definition.catchup == "none":
        late = max(late, now - CATCHUP_NONE_WINDOW)
    return [*reasons, ("late", late)]


@lru_cache(maxsize=16384)
def _due_slots(
    cron: Cron, where: ZoneInfo, start: datetime, now: datetime, latest: bool, limit: int | None
) -> DueSlots:
    """Return what the slots in (start, now] mean. Many jobs share an expression, and then they owe the same slots."""
    first = slots.next_slot(cron, where, start)
    if first is None or first.at > now:
        return DueSlots((), following=first)
    second = slots.next_slot(cron, where, first.at)
    if second is None or second.at > now:
        return DueSlots((first,), following=second)
    if not latest:
        found = tuple(islice(slots.slots(cron, where, start, now), limit and limit + 1))
        if limit and len(found) > limit:
            return DueSlots(found[:limit], following=found[limit])
        return DueSlots(found, following=_next(cron, where, now))
    newest = slots.newest_slot(cron, where, start, now)
    assert newest is not None
    superseded = slots.span(cron, where, start, newest.at - MICROSECOND)
    return DueSlots((newest,), superseded, following=_next(cron, where, now))


def decide(owed: OwedSlots, earliest_open: datetime | None, holders: Mapping[str, KeyHolder]) -> SlotPlan:
    """Return what becomes of the candidates.

    ``earliest_open`` is the earliest slot with an unfinished run that excludes others. ``holders`` has those keys of
    the candidates that are or were in use. A slot whose own run exists (backfilled) is accounted for by that.
    """
    definition = owed.definition
    runs: list[NewRun] = []
    gaps = list(owed.gaps)
    follows = None if gaps else definition.last_slot_at
    adjoins = bool(gaps)
    for key, slot in owed.candidates:
        holder = holders.get(key)
        reason = ""
        if definition.overlap == "skip" and earliest_open is not None and earliest_open < slot.at:
            reason = "overlap"
        elif holder is not None and not holder.is_of(definition.job_type, slot.at):
            reason = "key_taken"
        elif holder is None:
            run_at = slot.at + spread_offset(definition.job_type, definition.spread)
            runs.append(NewRun(definition.id, key, slot.at, run_at))
            earliest_open = min(earliest_open or slot.at, slot.at)
        if not reason:
            adjoins, follows = False, None
        elif adjoins and gaps[-1].reason == reason:
            gaps[-1] = gaps[-1]._replace(last=slot.at, slots=gaps[-1].slots + 1)
        else:
            gaps.append(Gap(definition.id, definition.job_type, slot.at, slot.at, 1, reason, follows))
            adjoins, follows = True, None
    move = CursorMove(definition.id, definition.last_slot_at, owed.last_slot_at, owed.next_slot_at)
    return SlotPlan(runs, gaps, move)


@lru_cache(maxsize=4096)
def spread_offset(job_type: str, spread: timedelta) -> timedelta:
    """Return by how much ``spread`` moves the runs of a job: whole seconds in [0, spread), the same on every host."""
    seconds = int(spread.total_seconds())
    if seconds <= 0:
        return timedelta(0)
    digest = hashlib.sha256(job_type.encode()).digest()
    return timedelta(seconds=int.from_bytes(digest[:8], "big") % seconds)


_next = lru_cache(maxsize=16384)(slots.next_slot)
_span = lru_cache(maxsize=16384)(slots.span)
