"""What an edit does to slots: those of one job, the keys they need, and the minutes in which many
jobs start. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from yamlsched.ask.forecast import MIN_PILE_UP_JOBS, ForecastSpan, forecast
from yamlsched.extras.preview.model import KeyConflict, MovedSlot, NewPileUp, SlotChanges
from yamlsched.schedule.job import Job
from yamlsched.sync.slot_plan import KeyHolder
from yamlsched.timetable import keys, slots
from yamlsched.timetable.cron import Cron
from yamlsched.timetable.keys import is_daily, slot_key
from yamlsched.timetable.slots import Slot
from yamlsched.timetable.upcoming import ScheduledJob
from yamlsched.timetable.zones import zone

DAY = timedelta(days=1)
DATE_MARGIN = 2 * DAY
"""A local date starts and ends within this time of any of its instants."""
AVERAGED_WEEKS = 4
MAX_COMPARED_SLOTS = 1_200
"""Slots of a job that are compared one by one: more than a week of every ten minutes."""


class Rule(NamedTuple):
    """All that determines the slots of a job."""

    cron: Cron
    timezone: str

    def slots(self, after: datetime, until: datetime) -> Iterator[Slot]:
        return slots.slots(self.cron, zone(self.timezone), after, until)

    def number(self, after: datetime, until: datetime) -> int:
        """Return the number of slots in (after, until] without listing them."""
        span = slots.span(self.cron, zone(self.timezone), after, until)
        return span.count if span else 0


def rule(job: Job | None) -> Rule | None:
    """Return the rule of a job; None if it has no slots."""
    return (
        Rule(job.fires, job.timezone)
        if job is not None and job.enabled and job.fires is not None
        else None
    )


@lru_cache(maxsize=16384)
def per_week(rule: Rule | None, at: datetime) -> float:
    """Return the slots a week, averaged over the next weeks."""
    return rule.number(at, at + AVERAGED_WEEKS * 7 * DAY) / AVERAGED_WEEKS if rule else 0.0


def is_busy(rule: Rule, at: datetime, until: datetime) -> bool:
    """Return whether a job has more slots in (at, until] than are compared one by one."""
    return rule.number(at, until) > MAX_COMPARED_SLOTS


@lru_cache(maxsize=4096)
def changes(before: Rule | None, after: Rule | None, at: datetime, until: datetime) -> SlotChanges:
    """Return how the slots of (at, until] differ.

    The slots of one local date that only one side has are a move if the other side has as many that
    only it has, in order. So a daily job moves within its date, which is its key.
    """
    if before == after:
        return SlotChanges()
    weeks = max(rule.cron.every for rule in (before, after) if rule)
    if weeks > 1 and until < (wider := at + weeks * 7 * DAY):  # the next slot may be that far
        found = changes(before, after, at, wider)
        return replace(found, compared_until=found.compared_until or wider) if found else found
    if any(rule and is_busy(rule, at, until) for rule in (before, after)):
        return _first_changes(before, after, at, until)
    old, _ = _by_date(before, at, until)
    new, remarks = _by_date(after, at, until)
    added, removed, moved, missed = [], [], [], []
    common = {slot for slots in old.values() for slot in slots} & {
        slot for slots in new.values() for slot in slots
    }
    are_daily = (
        before is not None and after is not None and is_daily(before.cron) and is_daily(after.cron)
    )
    for day in sorted({*old, *new}):
        only_old = [slot for slot in old.get(day, ()) if slot not in common]
        only_new = [slot for slot in new.get(day, ()) if slot not in common]
        if len(only_old) != len(only_new):
            removed += only_old
            added += only_new
            continue
        for move in map(MovedSlot, only_old, only_new):
            if move.before > at and move.after > at:
                moved.append(move)
                continue
            removed.append(move.before)
            added.append(move.after)
            if are_daily and move.after <= at < move.before <= until:
                missed.append(move)
    return SlotChanges(
        tuple(sorted(slot for slot in added if at < slot <= until)),
        tuple(sorted(slot for slot in removed if at < slot <= until)),
        tuple(
            sorted(
                (m for m in moved if m.before <= until or m.after <= until),
                key=lambda m: (m.before, m.after),
            )
        ),
        tuple(missed),
        tuple((slot, remark) for slot, remark in remarks.items() if slot not in common),
    )


def _first_changes(
    before: Rule | None, after: Rule | None, at: datetime, until: datetime
) -> SlotChanges:
    """Return how the first slots of a busy job differ, without looking for moves, which would not
    be useful.
    """
    first = [
        [slot.at for slot in islice(rule.slots(at, until), MAX_COMPARED_SLOTS)] if rule else []
        for rule in (before, after)
    ]
    end = min(slots[-1] for slots in first if len(slots) == MAX_COMPARED_SLOTS)
    old, new = ({slot for slot in slots if slot <= end} for slots in first)
    return SlotChanges(tuple(sorted(new - old)), tuple(sorted(old - new)), compared_until=end)


def _by_date(
    rule: Rule | None, at: datetime, until: datetime
) -> tuple[Mapping[date, list[datetime]], dict[datetime, str]]:
    """Return the slots of the local dates that overlap (at, until], by nominal date, and the notes
    of clock changes.
    """
    by_date: defaultdict[date, list[datetime]] = defaultdict(list)
    remarks = {}
    if rule is not None:
        where = zone(rule.timezone)
        first, last = (instant.astimezone(where).date() for instant in (at, until))
        for slot in rule.slots(at - DATE_MARGIN, until + DATE_MARGIN):
            if first <= slot.nominal.date() <= last or at < slot.at <= until:
                by_date[slot.nominal.date()].append(slot.at)
                if slot.at.astimezone(where).replace(tzinfo=None) != slot.nominal:
                    remarks[slot.at] = slot.note
    return by_date, remarks


def next_run_slot(
    rule: Rule | None, at: datetime, skipped: Collection[datetime]
) -> datetime | None:
    """Return the first slot after ``at`` that is not in ``skipped``."""
    while rule:
        slot = slots.next_slot(rule.cron, zone(rule.timezone), at)
        if slot is None or slot.at not in skipped:
            return slot.at if slot else None
        at = slot.at
    return None


def date_keys(job: Job, after: datetime, until: datetime) -> Iterator[tuple[str, Slot]]:
    """Yield the slots of (after, until] whose keys are dates, by key: only these can be used by
    another slot.
    """
    timing = rule(job)
    if timing is not None and is_daily(timing.cron):
        for slot in timing.slots(after, until):
            yield slot_key(job.name, timing.cron, slot), slot


def assumed_holders(jobs: Mapping[str, Job], at: datetime) -> dict[str, KeyHolder]:
    """Return the keys that runs of ``jobs`` have used by ``at`` if every slot was run."""
    uses = (
        (job.name, *pair) for job in jobs.values() for pair in date_keys(job, at - DATE_MARGIN, at)
    )
    return {key: KeyHolder(name, slot.at) for name, key, slot in uses}


def key_conflicts(
    job: Job, at: datetime, until: datetime, holders: Mapping[str, KeyHolder]
) -> tuple[KeyConflict, ...]:
    """Return the slots of (at, until] whose key something else has used."""
    candidates = [(slot.at, key, holders.get(key)) for key, slot in date_keys(job, at, until)]
    return tuple(
        KeyConflict(slot, key, holder.scheduled_for)
        for slot, key, holder in candidates
        if holder is not None and not holder.belongs_to(job.name, slot)
    )


def pile_ups(
    namespace: str,
    before: Mapping[str, Job],
    after: Mapping[str, Job],
    at: datetime,
    until: datetime,
) -> tuple[NewPileUp, ...]:
    """Return the minutes of (at, until] in which five or more jobs start, and fewer did before;
    grouped by the jobs.

    Busy jobs are left out, because they share their minutes with every job. An edited job has no
    slots from before ``at``.
    """
    old, new = (_scheduled(namespace, jobs, at, until) for jobs in (before, after))
    edited = {
        name: job._replace(not_before=at) for name, job in new.items() if old.get(name) != job
    }
    if not edited:
        return ()
    span = ForecastSpan(at, until, "UTC")
    jobs_before, new_forecast = (
        forecast(old.values(), span).jobs_by_minute,
        forecast({**new, **edited}.values(), span),
    )
    groups: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for minute, jobs in enumerate(new_forecast.jobs_by_minute):
        if jobs >= MIN_PILE_UP_JOBS and jobs > jobs_before[minute]:
            groups[new_forecast.names_at(minute)].append(minute)
    return tuple(
        NewPileUp(
            names,
            len(minutes),
            span.instant(minutes[0]),
            max(jobs_before[minute] for minute in minutes),
        )
        for names, minutes in sorted(
            groups.items(), key=lambda group: (-len(group[0]), group[1][0])
        )
    )


def _scheduled(
    namespace: str, jobs: Mapping[str, Job], at: datetime, until: datetime
) -> dict[str, ScheduledJob]:
    return {
        name: ScheduledJob(
            name, timing.cron, timing.timezone, keys.offset(namespace, name, job.spread)
        )
        for name, job in jobs.items()
        if (timing := rule(job)) is not None and not is_busy(timing, at, until)
    }
