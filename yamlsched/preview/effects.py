"""What an edit does to the slots of one job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice

from yamlsched.cron.expression import Cron
from yamlsched.definitions.job import Job
from yamlsched.keys import is_daily, slot_key
from yamlsched.preview.values import Moved, SlotChanges, Taken
from yamlsched.slots import Slot, next_slot, slots, span
from yamlsched.store.slots import KeyHolder
from yamlsched.zones import zone

DAY = timedelta(days=1)
AROUND = 2 * DAY
"""A local date starts and ends within this time of any of its instants."""
WEEKS = 4
MAX_SLOTS = 1_200
"""How many slots of a job are compared one by one: more than a week of every ten minutes."""

Rule = tuple[Cron, str]
"""An expression and the zone it is read in: all that decides slots."""


def rule(job: Job | None) -> Rule | None:
    """Return what decides the slots of a job; None if it has none."""
    return (job.cron, job.timezone) if job is not None and job.enabled and job.cron is not None else None


@lru_cache(maxsize=16384)
def per_week(rule: Rule | None, at: datetime) -> float:
    """Return how often a week it fires, averaged over the weeks to come."""
    found = span(rule[0], zone(rule[1]), at, at + WEEKS * 7 * DAY) if rule else None
    return found.count / WEEKS if found else 0.0


def is_busy(rule: Rule | None, at: datetime, until: datetime) -> bool:
    """Return whether a job has more slots in (at, until] than are compared one by one. Counts without listing them."""
    found = span(rule[0], zone(rule[1]), at, until) if rule else None
    return found is not None and found.count > MAX_SLOTS


@lru_cache(maxsize=4096)
def changes(before: Rule | None, after: Rule | None, at: datetime, until: datetime) -> SlotChanges:
    """Return how the slots of (at, until] differ.

    The slots of one local date that only one side has are a move if the other side has as many of its own there, in
    order. A daily job thus moves on its date, which is its key.
    """
    if before == after:
        return SlotChanges()
    if is_busy(before, at, until) or is_busy(after, at, until):
        return _first_changes(before, after, at, until)
    old, _ = _by_date(before, at, until)
    new, remarks = _by_date(after, at, until)
    added, removed, moved, passed = [], [], [], []
    common = {slot for slots in old.values() for slot in slots} & {slot for slots in new.values() for slot in slots}
    is_daily_twice = before is not None and after is not None and is_daily(before[0]) and is_daily(after[0])
    for day in sorted({*old, *new}):
        gone = [slot for slot in old.get(day, ()) if slot not in common]
        come = [slot for slot in new.get(day, ()) if slot not in common]
        if len(gone) != len(come):
            removed += gone
            added += come
            continue
        for was, will in zip(gone, come, strict=True):
            if was > at and will > at:
                moved.append(Moved(was, will))
                continue
            removed.append(was)
            added.append(will)
            if is_daily_twice and will <= at < was <= until:
                passed.append(Moved(was, will))
    return SlotChanges(
        tuple(sorted(slot for slot in added if at < slot <= until)),
        tuple(sorted(slot for slot in removed if at < slot <= until)),
        tuple(sorted((m for m in moved if m.before <= until or m.after <= until), key=lambda m: (m.before, m.after))),
        tuple(passed),
        tuple((slot, remark) for slot, remark in remarks.items() if slot not in common),
    )


def _first_changes(before: Rule | None, after: Rule | None, at: datetime, until: datetime) -> SlotChanges:
    """Return how the first slots differ, without looking for moves: of a busy job they say little."""
    first = [_first(rule, at, until) for rule in (before, after)]
    end = min(slots[-1] for slots in first if len(slots) == MAX_SLOTS)
    old, new = ({slot for slot in slots if slot <= end} for slots in first)
    return SlotChanges(tuple(sorted(new - old)), tuple(sorted(old - new)), compared_until=end)


def _first(rule: Rule | None, at: datetime, until: datetime) -> list[datetime]:
    return [slot.at for slot in islice(slots(rule[0], zone(rule[1]), at, until), MAX_SLOTS)] if rule else []


def _by_date(
    rule: Rule | None, at: datetime, until: datetime
) -> tuple[dict[date, list[datetime]], dict[datetime, str]]:
    """Return the slots of the whole local dates that have a part in (at, until], by the date that they name.

    And what there is to say of those that a clock change has moved.
    """
    found: dict[date, list[datetime]] = {}
    remarks = {}
    if rule is not None:
        where = zone(rule[1])
        first, last = (instant.astimezone(where).date() for instant in (at, until))
        for slot in slots(rule[0], where, at - AROUND, until + AROUND):
            if first <= slot.nominal.date() <= last or at < slot.at <= until:
                found.setdefault(slot.nominal.date(), []).append(slot.at)
                if slot.at.astimezone(where).replace(tzinfo=None) != slot.nominal:
                    remarks[slot.at] = slot.note
    return found, remarks


def following(rule: Rule | None, at: datetime, taken: Collection[datetime]) -> datetime | None:
    """Return the first slot after ``at`` that is run, ``taken`` being those that are not."""
    slot = next_slot(rule[0], zone(rule[1]), at) if rule else None
    while rule and slot and slot.at in taken:
        slot = next_slot(rule[0], zone(rule[1]), slot.at)
    return slot.at if slot else None


def keyed(job: Job, at: datetime, until: datetime) -> Iterator[tuple[str, Slot]]:
    """Yield the slots of (at, until] with their keys if those are dates: only these can be taken by another slot."""
    decides = rule(job)
    if decides is not None and is_daily(decides[0]):
        for slot in slots(decides[0], zone(decides[1]), at, until):
            yield slot_key(job.name, decides[0], slot), slot


def presumed(before: Mapping[str, Job], at: datetime) -> dict[str, KeyHolder]:
    """Return the keys that runs of the jobs ``before`` will have used by ``at``, if all went as it should."""
    return {key: KeyHolder(job.name, slot.at) for job in before.values() for key, slot in keyed(job, at - AROUND, at)}


def taken(after: Job, at: datetime, until: datetime, holders: Mapping[str, KeyHolder]) -> tuple[Taken, ...]:
    """Return the slots of (at, until] that find their key used by something else than themselves."""
    found = []
    for key, slot in keyed(after, at, until):
        holder = holders.get(key)
        if holder is not None and not holder.is_of(after.name, slot.at):
            found.append(Taken(slot.at, key, holder.scheduled_for))
    return tuple(found)
