"""A preview as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from yamlsched import durations
from yamlsched.extras.preview.model import (
    Hint,
    JobChange,
    Level,
    MovedSlot,
    NewPileUp,
    Preview,
    SlotChanges,
    SyncPlan,
)
from yamlsched.show.document import Document, Entries, Entry
from yamlsched.show.terminal import Styled, instant, paint
from yamlsched.sync.field_changes import (
    SIGNS,
    Change,
    FieldChange,
    before_and_after,
    field_name,
    value,
)
from yamlsched.sync.in_use import Verdict
from yamlsched.text import escape_line, join_first
from yamlsched.timetable.zones import zone

MAX_LISTED_SLOTS = 7
"""Slots of one kind that are listed, one a line; more are summarized."""
MAX_PILE_UPS = 7
MAX_NAMES = 10
MAX_PLAN_LINES = 20
COLOURS = {"+ ": "green", "- ": "red", "~ ": "yellow", "! ": "yellow"}
MARKS = {Level.WARNING: "!", Level.NOTE: "*"}
IDENTIFYING_FIELDS = ("cron", "crons", "timezone", "handler", "command")
"""All that is shown of a removed job."""
VERDICTS = {
    Verdict.CURRENT: "this file is in use",
    Verdict.RENEW: (
        "this file is in use; the next sync recomputes its slots, with newer rules or time zone"
        " data"
    ),
    Verdict.APPLY: "the next tick applies it",
    Verdict.UNCONFIRMED: "the second tick with it applies it, because it retires jobs",
    Verdict.SUPERSEDED: "a tick does not apply it; yamlsched sync would do this",
    Verdict.OTHER_ENVIRONMENT: "a tick refuses it; yamlsched sync would do this",
    Verdict.OTHER_NAMESPACE: "a tick refuses it; yamlsched sync would do this",
}


def document(preview: Preview) -> Document:
    """Return the whole preview: what it is about, each job that changes, and what a
    sync would do.
    """
    parts = [[entry(line) for line in _heading(preview)], *_changes(preview)]
    for title, lines in plan_sections(preview):
        more = [f"and {len(lines) - MAX_PLAN_LINES} more"] * (len(lines) > MAX_PLAN_LINES)
        listed = [entry(line) for line in [*lines[:MAX_PLAN_LINES], *more]]
        parts.append([entry(f"{title}: {len(lines)}", listed)])
    return Document(f"yamlsched {'plan' if preview.plan else 'diff'}", map(Entries, parts))


def entry(line: str, entries: Sequence[Entry] = (), text: Sequence[str] = ()) -> Entry:
    """Return an entry, which is one line whatever it has, in the colour of its sign."""
    line = escape_line(line)
    return Entry(
        Styled(paint(line, COLOURS[line[:2]]) if line[:2] in COLOURS else line), text, entries
    )


def _heading(preview: Preview) -> Iterator[str]:
    if preview.plan:
        yield f"namespace {preview.head.namespace} at {instant(preview.at)}"
        yield from plan_facts(preview, preview.plan)
    else:
        where = f" in {preview.environment}" if preview.environment else ""
        yield f"{preview.base.name} -> {preview.head.name}{where}, if applied {instant(preview.at)}"
        yield headline(preview)


def _changes(preview: Preview) -> Iterator[list[Entry]]:
    """Yield entries for what is outside of jobs, for each job, and for the minutes that fill up."""
    if preview.fields or preview.notes:
        yield [
            entry("the file", [*_fields(preview.fields, Change.CHANGED), *_notes(preview.notes)])
        ]
    for jobs in groups(preview):
        yield [_group(jobs, preview)]
    if preview.pile_ups:
        entries = [
            entry(f"{MARKS[Level.WARNING]} {pile_up(each, preview)}")
            for each in preview.pile_ups[:MAX_PILE_UPS]
        ]
        more = len(preview.pile_ups) - len(entries)
        yield [*entries, *[entry(f"  and {more} more such groups of jobs")] * bool(more)]


def _group(jobs: list[JobChange], preview: Preview) -> Entry:
    first = jobs[0]
    names = f"{SIGNS[first.change]} {join_first([job.job_type for job in jobs], MAX_NAMES)}"
    entries = [*_fields(shown_fields(first), first.change), *_notes(first.notes)]
    if first.change is Change.CHANGED and first.slots:
        entries.append(
            entry(f"slots {compared(first, preview)} ({first.timezone})", text=slot_lines(first))
        )
    return entry(f"{names}: {rate(first)}" if len(jobs) == 1 or first.slots else names, entries)


def _fields(fields: Sequence[FieldChange], kind: Change) -> Iterator[Entry]:
    names = [field_name(change) for change in fields]
    width = max(map(len, names), default=0)
    for name, change in zip(names, fields, strict=True):
        yield entry(f"{name:<{width}}  {before_and_after(change, kind)}")


def _notes(notes: Sequence[Hint]) -> Iterator[Entry]:
    yield from (entry(f"{MARKS[note.level]} {note.text}") for note in notes)


# What a plan adds


def plan_facts(preview: Preview, plan: SyncPlan) -> Iterator[str]:
    """Yield lines about the file, what is in use, and how much there is to do."""
    version, seen = plan.version, plan.snapshot
    in_use = seen.in_use
    where = f" for {version.environment}" if version.environment else ""
    yield f"file      {plan.path}{where}, hash {version.hash[:8]}: {VERDICTS[plan.verdict]}"
    if in_use is None:
        yield "in use    no file has been applied yet"
    elif plan.verdict not in (Verdict.CURRENT, Verdict.RENEW):
        of = f" for {in_use.environment}" if in_use.environment else ""
        yield (
            f"in use    {seen.in_use_path}{of}, hash {in_use.hash[:8]}, of host {seen.in_use_host},"
            f" since {instant(seen.in_use_since)}"
        )
    if plan.explanation:
        yield f"! {plan.explanation}"
    yield f"jobs      {headline(preview)}"
    if not (plan.runs or plan.skipped or plan.waiting):
        yield "due       nothing"


def plan_sections(preview: Preview) -> Iterator[tuple[str, list[str]]]:
    """Yield what a sync would do in addition to changing jobs, as titles with at least one line
    each.
    """
    plan = preview.plan
    if plan is None:
        return
    sections = {
        "runs to create": [
            run.idempotency_key
            + ("" if run.idempotency_key.endswith("Z") else f"  {instant(run.scheduled_for)}")
            + (f", starts at {instant(run.run_at)}" if run.run_at > preview.at else "")
            + (", owed by the definition in use" if run.settles else "")
            for run in plan.runs
        ],
        "slots to skip": [
            f"{gap.job_type}  {count(gap.slots, 'slot')}, {instant(gap.first_slot)}"
            + (f" to {instant(gap.last_slot)}" if gap.slots > 1 else "")
            + f": {gap.reason}"
            for gap in plan.skipped
        ],
        "slots that wait": [
            f"{slot.job_type}  {instant(slot.scheduled_for)}, until the run of"
            f" {instant(slot.open_slot)} has finished"
            for slot in plan.waiting
        ],
        "unfinished runs of jobs that are not in the file": [
            f"{job.job_type}  {count(job.unfinished, 'run')}, {job.running} of them running; "
            f"those left are cancelled from {instant(job.cancelled_at)} on"
            for job in plan.leaving
        ],
        "paused; sync does not change this": [
            f"{job.job_type}  since {instant(job.paused_at)}"
            + (f" by {value(job.paused_by)}" if job.paused_by else "")
            + (
                f", until {instant(job.paused_until)}"
                if job.paused_until
                else ", until it is resumed"
            )
            + (f": {value(job.paused_reason)}" if job.paused_reason else "")
            + (
                f"; slots of {join_first(job.followers, MAX_NAMES)} have nothing to wait for"
                if job.followers
                else ""
            )
            for job in plan.paused
        ],
        "jobs whose slots cannot be computed here": plan.unreadable,
    }
    yield from ((title, lines) for title, lines in sections.items() if lines)


# Phrases


def headline(preview: Preview) -> str:
    """Return what happens in one sentence, without its full stop."""
    if not preview.jobs:
        same = count(preview.unchanged, "job")
        return f"no job changes ({same})" if preview.unchanged else "no jobs on either side"
    numbers = {
        str(change): len(preview.named(change))
        for change in (Change.ADDED, Change.CHANGED, Change.REMOVED)
    }
    numbers["unchanged"] = preview.unchanged
    return (
        f"{_counts('job', numbers)};"
        f" {_rates(preview.fires_per_week_before, preview.fires_per_week_after)}"
    )


def _counts(noun: str, numbers: Mapping[str, int]) -> str:
    """Return the numbers that are not zero, each with its name: ``2 jobs added, 1 changed``."""
    pairs = [(name, many) for name, many in numbers.items() if many]
    return ", ".join(
        f"{many if nth else count(many, noun)} {name}" for nth, (name, many) in enumerate(pairs)
    )


def _rates(before: float, after: float) -> str:
    if round(before, 2) == round(after, 2):
        return f"{count(after, 'slot')} a week" + (", unchanged" if after else "")
    return f"{count(after, 'slot')} a week (before: {number(before)})"


def count(many: float, noun: str) -> str:
    return f"{number(many)} {noun}" + ("" if many == 1 else "s")


def number(value: float) -> str:
    """Return a number without superfluous digits.

    >>> number(7.0), number(0.25), number(10080.0)
    ('7', '0.25', '10080')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rate(job: JobChange) -> str:
    """Return how often a job fires and when next, on its wall clock."""
    before, after = job.fires_per_week_before, job.fires_per_week_after
    if job.change is Change.REMOVED:
        return f"had {count(before, 'slot')} a week" if before else "had no slots"
    if job.next_slot_at is None:
        return _rates(before, 0) if before else "no slots"
    following = f"next {clock(job.next_slot_at, job.timezone)} {job.timezone}"
    if not (before or after):
        return following
    rates = (
        f"{count(after, 'slot')} a week" if job.change is Change.ADDED else _rates(before, after)
    )
    return f"{rates}, {following}"


def clock(instant: datetime, timezone: str, beside: datetime | None = None) -> str:
    """Return an instant on the wall clock of ``timezone``, without the date if that is the date of
    ``beside``.
    """
    where = zone(timezone)
    local = instant.astimezone(where)
    is_repeated = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    second = " (second pass)" if is_repeated and local.fold else ""
    if beside is not None and beside.astimezone(where).date() == local.date():
        return f"{local:%H:%M}{second}"
    return f"{local:%a %Y-%m-%d %H:%M}{second}"


def slot_lines(job: JobChange) -> list[str]:
    """Return one line for each moved, removed or added slot; a summary of each kind
    that has many.
    """
    slots, timezone = job.slots, job.timezone
    skipped, remarks = {conflict.scheduled_for for conflict in job.key_taken}, dict(slots.remarks)

    def suffix(slot: datetime) -> str:
        if slot in skipped:
            return "  skipped: key_taken"
        return f"  {remarks[slot]}" if slot in remarks else ""

    def move(moved: MovedSlot) -> str:
        return (
            f"{clock(moved.before, timezone)} ->"
            f" {clock(moved.after, timezone, moved.before)}{suffix(moved.after)}"
        )

    def point(slot: datetime) -> str:
        return clock(slot, timezone) + suffix(slot)

    lines = _kind("moved", slots.moved, move, _shifts(slots.moved))
    lines += _kind("removed", slots.removed, point) + _kind("added", slots.added, point)
    return lines or ["no slot differs"]


def _kind(
    name: str, slots: Sequence[Any], show: Callable[[Any], str], remark: str = ""
) -> list[str]:
    if len(slots) <= MAX_LISTED_SLOTS:
        return [f"{name:<8} {show(slot)}" for slot in slots]
    return [
        f"{name:<8} {len(slots)} slots{remark}",
        f"{'':<8} first {show(slots[0])}",
        f"{'':<8} last  {show(slots[-1])}",
    ]


def _shifts(moved: Sequence[MovedSlot]) -> str:
    shifts = sorted({move.shift for move in moved})
    if not shifts:
        return ""
    words = [
        f"{durations.show(abs(s))} {'later' if s > timedelta(0) else 'earlier'}"
        for s in (shifts[0], shifts[-1])
    ]
    return f", each {words[0]}" if len(shifts) == 1 else f", from {words[0]} to {words[1]}"


def compared(job: JobChange, preview: Preview) -> str:
    """Return for how long the slots of a job are compared."""
    until = job.slots.compared_until
    return f"until {clock(until, job.timezone)}" if until else f"of {count(preview.days, 'day')}"


def pile_up(group: NewPileUp, preview: Preview) -> str:
    """Return which jobs start together, and when first."""
    timezone = preview.head.timezone or "UTC"
    first = f"{clock(group.first_at, timezone)} {timezone}"
    when = (
        f"at {first}"
        if group.times == 1
        else f"{group.times} times in {count(preview.days, 'day')}, first {first}"
    )
    names = join_first(group.jobs, MAX_NAMES)
    return (
        f"{len(group.jobs)} jobs now start in one minute, {when} (before: {group.jobs_before}):"
        f" {names}"
    )


def groups(preview: Preview) -> list[list[JobChange]]:
    """Return the jobs that change, those that change in the same way together: an edit of defaults
    is shown once.
    """
    groups: dict[object, list[JobChange]] = {}
    for job in preview.jobs:
        key: object = job.job_type
        if job.change is Change.CHANGED:
            alike = replace(job, job_type="", slots=SlotChanges())
            if not job.slots:
                alike = replace(
                    alike,
                    timezone="",
                    fires_per_week_before=0,
                    fires_per_week_after=0,
                    next_slot_at=None,
                )
            key = repr(alike), job.slots
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def shown_fields(job: JobChange) -> tuple[FieldChange, ...]:
    """Return the fields that a reviewer needs: of a removed job only those that identify it."""
    if job.change is not Change.REMOVED:
        return job.fields
    return tuple(field for field in job.fields if field.field in IDENTIFYING_FIELDS)
