"""Which slots of a job get a run, which are recorded as skipped and why, and where its cursor
moves.

The rules are those of docs/catchup.md. Pure: the instant and what the database knows are arguments.
``owed_slots`` reads the slots alone; ``decide`` adds unfinished runs and used keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import groupby, islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched.errors import ScheduleError
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import keys, slots
from yamlsched.timetable.calendars import of_rows, skipped_by
from yamlsched.timetable.cron import Cron, parse_schedule, without_skipped
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.slots import Slot
from yamlsched.timetable.zones import zone


class KeyHolder(NamedTuple):
    """Which slot of which job a key belongs to, now or before; none for an ad hoc run. A pruned run
    has no status.
    """

    job_type: str
    scheduled_for: datetime | None
    run_id: int = 0
    status: str | None = None

    def belongs_to(self, job_type: str, slot: datetime) -> bool:
        """Return whether the key belongs to this slot."""
        return (self.job_type, self.scheduled_for) == (job_type, slot)


class NewRun(NamedTuple):
    """A run to create."""

    definition_id: int
    key: str
    slot: datetime
    run_at: datetime


class Gap(NamedTuple):
    """Slots that are not run. ``follows`` is the job's cursor if the gap starts right after it,
    else None.
    """

    definition_id: int
    job_type: str
    first: datetime
    last: datetime
    slots: int
    reason: str
    follows: datetime | None = None
    detail: str | None = None


class AwaitedSlot(NamedTuple):
    """What the new run with a key waits for: a slot of another job; None: the last one that was
    owed.
    """

    key: str
    upstream: int
    slot: datetime | None


class CursorMove(NamedTuple):
    """A definition's cursor before and after, and its next slot."""

    definition_id: int
    before: datetime | None
    last_slot_at: datetime | None
    next_slot_at: datetime | None


CATCHUP_NONE_WINDOW = timedelta(minutes=2)
"""With ``catchup: none`` a slot this old is late: a tick comes every minute, and may itself be
late.
"""
MAX_CATCHUP_RUNS = 100
"""Runs of one job with ``catchup: all`` that one sync creates: the others wait for the next."""
MICROSECOND = timedelta(microseconds=1)


class Candidate(NamedTuple):
    """A slot that gets a run unless an unfinished run or its key prevents that."""

    key: str
    slot: Slot


class OwedSlots(NamedTuple):
    """The slots to account for now, oldest first: gaps that are certain, and
    candidates for a run.
    """

    definition: Definition
    gaps: list[Gap]
    candidates: list[Candidate]
    last_slot_at: datetime | None
    next_slot_at: datetime | None


class SlotPlan(NamedTuple):
    """What accounts for a job's slots. All of it is written in one transaction, or nothing."""

    definition: Definition
    runs: list[NewRun]
    gaps: list[Gap]
    move: CursorMove


def next_slot_at(definition: Definition, after: datetime) -> datetime | None:
    """Return the first slot after ``after`` that makes the job due; None if there is none.

    During a pause with an end, that is the first slot after the end; during one without, there is
    none.
    """
    is_paused = definition.paused_at is not None and definition.paused_until is None
    is_off = definition.retired_at is not None or not definition.enabled
    if definition.schedule is None or is_off or is_paused:
        return None
    after = max(after, definition.paused_until or after)
    slot = slots.next_slot(parse_schedule(definition.schedule), zone(definition.timezone), after)
    return slot.at if slot else None


def owed_slots(definition: Definition, now: datetime, is_closing: bool = False) -> OwedSlots:
    """Return what a definition owes in (accounted_to, now].

    ``is_closing`` is for a definition about to be changed: everything is accounted for at once, so
    that later rules never apply to earlier slots. Raises ScheduleError if the definition cannot be
    read.
    """
    base = definition.accounted_to
    if definition.schedule is None or now <= base:
        return OwedSlots(
            definition, [], [], definition.last_slot_at, next_slot_at(definition, max(now, base))
        )
    cron, where = parse_schedule(definition.schedule), zone(definition.timezone)

    skip_on, only_on = of_rows(definition.skip_on), of_rows(definition.only_on)
    fires = without_skipped(cron, skip_on, only_on)

    gaps: list[Gap] = []
    start = base
    for reason, until in _unconditional_skips(definition, now):
        if until > start:
            gaps += _skipped_gaps(
                definition, start, until if reason == "late" else start, reason, until
            )
            start = until

    owed: list[Slot] = []
    end = now
    if start < now:
        limit = MAX_CATCHUP_RUNS if definition.catchup == "all" and not is_closing else None
        owed = _due_slots(definition, fires, where, start, now, limit)
        if len(owed) == limit:
            end = owed[-1].at
        superseded_to = owed[0].at - MICROSECOND if owed else start
        gaps += _skipped_gaps(definition, start, end, "superseded", superseded_to)
    if gaps and not (owed and owed[0].at < gaps[0].first):
        gaps[0] = gaps[0]._replace(follows=definition.last_slot_at)

    newest = [slot.at for slot in owed[-1:]] + [gap.last for gap in gaps[-1:]]
    accounted = max(newest, default=definition.last_slot_at)
    candidates = [Candidate(slot_key(definition.job_type, cron, slot), slot) for slot in owed]
    return OwedSlots(definition, gaps, candidates, accounted, next_slot_at(definition, end))


def _skipped_gaps(
    definition: Definition, start: datetime, end: datetime, reason: str, last: datetime
) -> Iterator[Gap]:
    """Yield the slots that calendars skip in (start, end], and the others in (start, last] for
    ``reason``, in order.
    """
    cron, where = parse_schedule(definition.schedule or ""), zone(definition.timezone)
    skip_on, only_on = of_rows(definition.skip_on), of_rows(definition.only_on)
    if end <= start or not (skip_on or only_on):
        if last > start and (span := slots.span(cron, where, start, last)):
            yield _gap(definition, span, reason)
        return

    detail = cache(partial(skipped_by, skip_on, only_on))  # of a day: it may have 1,440 slots
    found_slots = slots.slots(cron, where, start, max(end, last))
    for skipped, alike in groupby(found_slots, lambda slot: detail(slot.nominal.date())):
        until = end if skipped else last
        if found := [slot.at for slot in alike if slot.at <= until]:
            span = slots.Span(found[0], found[-1], len(found))
            yield _gap(definition, span, "calendar" if skipped else reason, skipped or None)


def _gap(definition: Definition, span: slots.Span, reason: str, detail: str | None = None) -> Gap:
    return Gap(
        definition.id, definition.job_type, span.first, span.last, span.count, reason, detail=detail
    )


def owed_by_unreadable(definition: Definition, now: datetime) -> OwedSlots:
    """Return what accounts for the slots of a definition that cannot be read and is about to be
    changed.

    Only its next slot is known. The time from that to the minute of ``now`` is one gap, counted as
    one slot.
    """
    first = definition.next_slot_at
    if first is None or first > now:
        return OwedSlots(definition, [], [], definition.last_slot_at, first)
    last = max(first, now.replace(second=0, microsecond=0))
    gap = Gap(definition.id, definition.job_type, first, last, 1, "late")
    return OwedSlots(definition, [gap], [], last, None)


def _unconditional_skips(definition: Definition, now: datetime) -> list[tuple[str, datetime]]:
    """Return the reasons that skip all slots up to an instant, independent of runs, in order."""
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


def _due_slots(
    definition: Definition,
    fires: Cron,
    where: ZoneInfo,
    start: datetime,
    now: datetime,
    limit: int | None,
) -> list[Slot]:
    """Return the slots in (start, now] that get a run, oldest first. The last of them supersedes
    those before the first, if the job catches up with the latest only.
    """
    if definition.catchup != "latest":
        return list(islice(slots.slots(fires, where, start, now), limit))
    # which slot of a job that follows others is run depends on what each waits for
    most = MAX_CATCHUP_RUNS if definition.after else 1
    newest: deque[Slot] = deque()
    until = now
    while len(newest) < most and (slot := slots.newest_slot(fires, where, start, until)):
        newest.appendleft(slot)
        until = slot.at - MICROSECOND
    return list(newest)


def awaited_slot(
    schedule: str | None, timezone: str, effective_from: datetime, slot: datetime
) -> datetime | None:
    """Return the latest slot of a followed job at or before ``slot``; None if it has none since it
    counts.
    """
    with suppress(ScheduleError):
        if schedule is not None:
            awaited = slots.newest_slot(
                parse_schedule(schedule), zone(timezone), effective_from, slot
            )
            return awaited.at if awaited else None
    return None


def decide(
    namespace: str,
    owed: OwedSlots,
    earliest_open: datetime | None,
    holders: Mapping[str, KeyHolder],
) -> SlotPlan:
    """Return which candidates get a run, and record the others as skipped.

    ``earliest_open`` is the earliest slot with an unfinished run that excludes others. ``holders``
    has those keys of the candidates that are or were in use. A slot whose own run exists (from a
    backfill) is accounted for by that.
    """
    definition = owed.definition
    runs: list[NewRun] = []
    gaps = list(owed.gaps)
    follows = None if gaps else definition.last_slot_at
    adjoins = bool(gaps)
    # of a job that follows others it is decided when a slot waits for nothing else
    skips_overlap = definition.overlap == "skip" and not definition.after
    for key, slot in owed.candidates:
        holder = holders.get(key)
        reason = ""
        if skips_overlap and earliest_open is not None and earliest_open < slot.at:
            reason = "overlap"
        elif holder is not None and not holder.belongs_to(definition.job_type, slot.at):
            reason = "key_taken"
        elif holder is None:
            runs.append(
                NewRun(definition.id, key, slot.at, _run_at(namespace, definition, slot.at))
            )
            earliest_open = min(earliest_open or slot.at, slot.at)
        if not reason:
            adjoins, follows = False, None
        elif adjoins and gaps[-1].reason == reason:
            gaps[-1] = gaps[-1]._replace(last=slot.at, slots=gaps[-1].slots + 1)
        else:
            gaps.append(
                Gap(definition.id, definition.job_type, slot.at, slot.at, 1, reason, follows)
            )
            adjoins, follows = True, None
    move = CursorMove(definition.id, definition.last_slot_at, owed.last_slot_at, owed.next_slot_at)
    return SlotPlan(definition, runs, gaps, move)


def _run_at(namespace: str, definition: Definition, slot_at: datetime) -> datetime:
    if definition.schedule is None or not definition.spread:
        return slot_at
    cron, where = parse_schedule(definition.schedule), zone(definition.timezone)
    offset = keys.offset(namespace, definition.job_type, definition.spread)
    return keys.run_at(offset, cron, where, slot_at)
