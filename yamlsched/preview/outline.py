"""What the text and the markdown have in common: the parts of a preview as short texts, bounded in number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from yamlsched import durations
from yamlsched.preview.values import Change, FieldChange, JobChange, Level, Moved, PileUp, Preview, SlotChanges
from yamlsched.terminal import escape_control, truncate
from yamlsched.zones import zone

MANY = 7
"""At most this many slots of a kind are listed, one a line; more are summed up."""
NAMED = 10
NO_SLOTS = SlotChanges()
SIMPLE = re.compile(r"[A-Za-z0-9_./:+-][A-Za-z0-9_./:+ -]*")


def headline(preview: Preview) -> str:
    """Return what happens in one sentence, without its full stop."""
    parts: list[str] = []
    for change in (Change.ADDED, Change.CHANGED, Change.REMOVED):
        if names := preview.named(change):
            parts.append(f"{count(len(names), 'job') if not parts else len(names)} {change}")
    if not parts:
        same = count(preview.unchanged, "job")
        return f"no job changes ({same})" if preview.unchanged else "no jobs on either side"
    rest = f", {preview.unchanged} unchanged" if preview.unchanged else ""
    return ", ".join(parts) + rest + "; " + fires(preview.per_week_before, preview.per_week_after)


def fires(before: float, after: float) -> str:
    """Return how many slots a week there are, and were before."""
    if round(before, 2) == round(after, 2):
        return f"{count(after, 'slot')} a week" + (", unchanged" if after else "")
    return f"{count(after, 'slot')} a week (before: {number(before)})"


def count(many: float, what: str) -> str:
    return f"{number(many)} {what}" + ("" if many == 1 else "s")


def number(value: float) -> str:
    """Return a number without needless digits.

    >>> number(7.0), number(0.25), number(10080.0)
    ('7', '0.25', '10080')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rate(job: JobChange) -> str:
    """Return how often a job fires and when next, on its wall clock."""
    if job.change is Change.REMOVED:
        return f"had {count(job.per_week_before, 'slot')} a week" if job.per_week_before else "had no slots"
    if job.next_slot_at is None:
        return fires(job.per_week_before, 0) if job.per_week_before else "no slots"
    following = f"next {clock(job.next_slot_at, job.timezone)} {job.timezone}"
    if not (job.per_week_before or job.per_week_after):
        return following
    if job.change is Change.ADDED:
        return f"{count(job.per_week_after, 'slot')} a week, {following}"
    return f"{fires(job.per_week_before, job.per_week_after)}, {following}"


def clock(instant: datetime, timezone: str, beside: datetime | None = None) -> str:
    """Return an instant on the wall clock of ``timezone``, without the date if that is the date of ``beside``."""
    where = zone(timezone)
    local = instant.astimezone(where)
    twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    second = " (second pass)" if twice and local.fold else ""
    if beside is not None and beside.astimezone(where).date() == local.date():
        return f"{local:%H:%M}{second}"
    return f"{local:%a %Y-%m-%d %H:%M}{second}"


def slots(job: JobChange) -> list[str]:
    """Return one line for each added, removed or moved slot; for many of a kind a summary."""
    changes, timezone = job.slots, job.timezone
    skipped, remarks = {one.slot for one in job.taken}, dict(changes.remarks)

    def move(moved: Moved) -> str:
        return f"{clock(moved.before, timezone)} -> {clock(moved.after, timezone, moved.before)}{fate(moved.after)}"

    def point(slot: datetime) -> str:
        return clock(slot, timezone) + fate(slot)

    def fate(slot: datetime) -> str:
        if slot in skipped:
            return "  skipped: key_taken"
        return f"  {remarks[slot]}" if slot in remarks else ""

    lines = _kind("moved", changes.moved, move, _shifts(changes.moved))
    lines += _kind("removed", changes.removed, point) + _kind("added", changes.added, point)
    return lines or ["no slot until then differs"]


def _kind(name: str, found: Sequence[Any], show: Callable[[Any], str], remark: str = "") -> list[str]:
    if len(found) <= MANY:
        return [f"{name:<8} {show(one)}" for one in found]
    return [
        f"{name:<8} {len(found)} slots{remark}",
        f"{'':<8} first {show(found[0])}",
        f"{'':<8} last  {show(found[-1])}",
    ]


def _shifts(moved: Iterable[Moved]) -> str:
    shifts = sorted({one.shift for one in moved})
    if not shifts:
        return ""
    if len(shifts) == 1:
        return f", each {_shift(shifts[0])}"
    return f", from {_shift(shifts[0])} to {_shift(shifts[-1])}"


def _shift(shift: timedelta) -> str:
    return f"{durations.show(abs(shift))} {'later' if shift > timedelta(0) else 'earlier'}"


def compared(job: JobChange, preview: Preview) -> str:
    """Return for how long the slots of a job are compared."""
    until = job.slots.compared_until
    return f"until {clock(until, job.timezone)}" if until else f"of {count(preview.days, 'day')}"


def slots_in_short(job: JobChange) -> str:
    """Return how many slots move, go and come."""
    changes = job.slots
    skipped = {one.slot for one in job.taken}
    added = len([slot for slot in changes.added if slot not in skipped])
    kinds = {"moved": len(changes.moved), "removed": len(changes.removed), "added": added, "skipped": len(skipped)}
    parts: list[str] = []
    for verb, many in kinds.items():
        if many:
            parts.append(f"{count(many, 'slot') if not parts else many} {verb}")
    return ("at least " if changes.compared_until and parts else "") + ", ".join(parts)


def pile_up(found: PileUp, preview: Preview) -> str:
    """Return which jobs start together, and when first."""
    timezone = preview.head.timezone or "UTC"
    first = f"{clock(found.first_at, timezone)} {timezone}"
    when = f"at {first}" if found.times == 1 else f"{found.times} times in {count(preview.days, 'day')}, first {first}"
    return f"{len(found.jobs)} jobs now start in one minute, {when} (before: {found.jobs_before}): {names(found.jobs)}"


def names(found: Sequence[str]) -> str:
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def groups(preview: Preview) -> list[list[JobChange]]:
    """Return the jobs that change, those that change in the same way together: an edit of defaults is shown once."""
    found: dict[object, list[JobChange]] = {}
    for job in preview.jobs:
        alike = replace(job, job_type="")
        if not job.slots:
            alike = replace(alike, timezone="", per_week_before=0, per_week_after=0, next_slot_at=None)
        key = (repr(replace(alike, slots=NO_SLOTS)), job.slots) if job.change is Change.CHANGED else job.job_type
        found.setdefault(key, []).append(job)
    return list(found.values())


def warnings(preview: Preview) -> list[tuple[str, str]]:
    """Return what most people would not expect, with the job that it is about, if it is one."""
    found = [("", note.text) for note in preview.notes if note.level is Level.WARNING]
    for job in preview.jobs:
        found += [(job.job_type, note.text) for note in job.notes if note.level is Level.WARNING]
    return found


def written(value: Any) -> str:
    """Return a value about as the file writes it, on one line, truncate when long."""
    if isinstance(value, str):
        return truncate(escape_control(value)) or '""'
    return "(not set)" if value is None else truncate(_flow(value))


def key(change: FieldChange) -> str:
    """Return the name of a field; those of a payload are the user's."""
    return truncate(escape_control(change.field))


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{escape_control(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and SIMPLE.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=True)


def before_and_after(change: FieldChange, kind: Change, arrow: str = "->") -> str:
    """Return ``before -> after``; of a job that only one side has, that side."""
    if kind is Change.ADDED:
        return written(change.after)
    if kind is Change.REMOVED:
        return written(change.before)
    return f"{written(change.before)} {arrow} {written(change.after)}"


def shown_fields(job: JobChange) -> tuple[FieldChange, ...]:
    """Return the fields that a reviewer needs: of a removed job only those that identify it."""
    if job.change is not Change.REMOVED:
        return job.fields
    return tuple(field for field in job.fields if field.field in ("cron", "timezone", "handler"))
