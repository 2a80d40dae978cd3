"""A preview as a comment of a pull request: a line, a table, the warnings; fields and
slots folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from yamlsched.extras.preview import text
from yamlsched.extras.preview.model import JobChange, Level, Preview
from yamlsched.show.markdown import code, prose, table
from yamlsched.sync import field_changes
from yamlsched.sync.field_changes import Change, FieldChange

MAX_ROWS = 50
"""Rows of the table, jobs with details, and lines of a list."""
MAX_COMMENT_CHARS = 55_000
"""Forges accept 65,536 in one comment."""
ARROW = "→"


def render(preview: Preview) -> str:
    """Return the comment."""
    lines = [*_heading(preview)]
    if preview.fields:
        lines += ["", *_fields(preview.fields, Change.CHANGED)]
    groups = text.groups(preview)
    if groups:
        lines += ["", "| | job | slots a week | what changes |", "| --- | --- | --- | --- |"]
        lines += [_row(jobs) for jobs in groups[:MAX_ROWS]]
        if len(groups) > MAX_ROWS:
            lines.append(f"| | and {len(groups) - MAX_ROWS} more | | |")
    lines += _warnings(preview)
    lines += _details(groups, preview, MAX_COMMENT_CHARS - sum(len(line) + 1 for line in lines))
    return "\n".join(lines)


def _heading(preview: Preview) -> Iterator[str]:
    """Yield what the preview is about; of a plan also what only the database knows."""
    if preview.plan is None:
        where = f" in {code(preview.environment)}" if preview.environment else ""
        sides = f"{code(preview.base.name)} {ARROW} {code(preview.head.name)}{where}"
        yield f"**yamlsched diff** {sides}: {prose(text.headline(preview))}."
        return
    yield from (f"**yamlsched plan** of namespace {code(preview.head.namespace)}", "")
    yield from (
        f"- {prose(' '.join(fact.split()))}" for fact in text.plan_facts(preview, preview.plan)
    )
    for title, lines in text.plan_sections(preview):
        yield from ("", f"{title}: {len(lines)}", "")
        yield from _list([code(line) for line in lines])


def _list(lines: Sequence[str], noun: str = "") -> Iterator[str]:
    yield from (f"- {line}" for line in lines[:MAX_ROWS])
    if len(lines) > MAX_ROWS:
        yield f"- and {len(lines) - MAX_ROWS} more{noun}"


def _row(jobs: list[JobChange]) -> str:
    first = jobs[0]
    named = ", ".join(code(job.job_type) for job in jobs[: text.MAX_NAMES])
    if len(jobs) > text.MAX_NAMES:
        named += f" and {len(jobs) - text.MAX_NAMES} more"
    before, after = (
        text.number(first.fires_per_week_before),
        text.number(first.fires_per_week_after),
    )
    if len(jobs) > 1 and not first.slots:
        rates = ""
    elif first.change is Change.CHANGED and before != after:
        rates = f"{before} {ARROW} {after}"
    else:
        rates = before if first.change is Change.REMOVED else after
    return f"| {first.change} | {named} | {rates} | {_what(first)} |"


def _what(job: JobChange) -> str:
    if job.change is not Change.CHANGED:
        crons = [change for change in job.fields if change.field in ("cron", "crons")]
        parts = [code(field_changes.before_and_after(change, job.change)) for change in crons]
        if job.next_slot_at:
            parts.append(f"next {text.clock(job.next_slot_at, job.timezone)} {job.timezone}")
        return ", ".join(parts) or "runs when enqueued"
    fields = ", ".join(code(field_changes.field_name(change)) for change in job.fields)
    slots = text.slot_counts(job)
    return f"{fields}: {slots}" if slots else fields


def _warnings(preview: Preview) -> Iterator[str]:
    warnings = [prose(note.text) for note in preview.notes if note.level is Level.WARNING]
    for job in preview.jobs:
        warnings += [
            f"{code(job.job_type)}: {prose(note.text)}"
            for note in job.notes
            if note.level is Level.WARNING
        ]
    warnings += [prose(text.pile_up(pile_up, preview)) for pile_up in preview.pile_ups]
    if warnings:
        yield ""
        yield from _list([f":warning: {line}" for line in warnings], " warnings")


def _details(groups: list[list[JobChange]], preview: Preview, room: int) -> Iterator[str]:
    """Yield the folded part: as many jobs as fit into ``room`` characters."""
    notes = [note.text for note in preview.notes if note.level is Level.NOTE]
    if not groups and not notes:
        return
    days = text.count(preview.days, "day")
    at = f"{preview.at:%Y-%m-%d %H:%M} UTC"
    yield from (
        "",
        "<details>",
        f"<summary>Fields, effects, and slots of {days} if applied {at}</summary>",
        "",
    )
    yield from (f"- {prose(sentence)}" for sentence in notes)
    for number, jobs in enumerate(groups):
        block = list(_block(jobs, preview))
        room -= sum(len(line) + 1 for line in block)
        if room < 0 or number == MAX_ROWS:
            yield from (
                (
                    f"and {len(groups) - number} more: `yamlsched diff` without `--format markdown`"
                    " shows all."
                ),
                "",
            )
            break
        yield from block
    yield "</details>"


def _block(jobs: list[JobChange], preview: Preview) -> Iterator[str]:
    first = jobs[0]
    yield f"**{first.change}** " + ", ".join(code(job.job_type) for job in jobs[:MAX_ROWS])
    if len(jobs) > MAX_ROWS:
        yield f"and {len(jobs) - MAX_ROWS} more"
    fields = text.shown_fields(first)
    if fields:
        yield ""
        yield from _fields(fields, first.change)
    lines = [prose(note.text) for note in first.notes]
    if len(jobs) == 1 or first.slots:
        lines.append(prose(text.rate(first)))
    yield from ("", *(f"- {line}" for line in lines))
    if first.change is Change.CHANGED and first.slots:
        if first.slots.compared_until:
            yield f"- only slots {text.compared(first, preview)} are compared"
        yield from ("", "```", *text.slot_lines(first), "```")
    yield ""


def _fields(fields: Sequence[FieldChange], kind: Change) -> Iterator[str]:
    names = [code(field_changes.field_name(change)) for change in fields]
    if kind is not Change.CHANGED:
        values = [code(field_changes.before_and_after(change, kind)) for change in fields]
        return table(("key", "value"), zip(names, values, strict=True))
    sides = [
        [
            "" if side is None else code(field_changes.value(side))
            for side in (change.before, change.after)
        ]
        for change in fields
    ]
    return table(
        ("key", "before", "after"),
        ([name, *cells] for name, cells in zip(names, sides, strict=True)),
    )
