"""A preview for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from yamlsched.preview import outline
from yamlsched.preview.values import Change, FieldChange, JobChange, Level, Note, Preview
from yamlsched.terminal import escape_line

SIGNS = {Change.ADDED: "+", Change.REMOVED: "-", Change.CHANGED: "~"}
MARKS = {Level.WARNING: "!", Level.NOTE: "*"}
INDENT = " " * 4


def render(preview: Preview) -> str:
    """Return the whole preview: a line for all of it, then a paragraph for each job that changes."""
    at = f"{preview.at:%Y-%m-%dT%H:%M:%SZ}"
    where = f" in {preview.environment}" if preview.environment else ""
    blocks = [[f"{preview.base.name} -> {preview.head.name}{where}, if applied {at}", outline.headline(preview)]]
    return join([*blocks, *changes(preview)])


def join(blocks: list[list[str]]) -> str:
    """Return the text of blocks of lines; whatever is in a line stays in it."""
    return "\n\n".join("\n".join(map(escape_line, block)) for block in blocks if block)


def changes(preview: Preview) -> list[list[str]]:
    """Return a block of lines for what is outside of jobs, for each job, and for the minutes that fill up."""
    blocks = []
    if preview.fields or preview.notes:
        blocks.append(["the file", *_fields(preview.fields, Change.CHANGED), *_notes(preview.notes)])
    blocks += [list(_group(jobs, preview)) for jobs in outline.groups(preview)]
    if preview.pile_ups:
        shown = [f"{MARKS[Level.WARNING]} {outline.pile_up(one, preview)}" for one in preview.pile_ups[: outline.MANY]]
        more = len(preview.pile_ups) - len(shown)
        blocks.append([*shown, *[f"  and {more} more such groups of jobs"] * bool(more)])
    return blocks


def _group(jobs: list[JobChange], preview: Preview) -> Iterator[str]:
    first = jobs[0]
    head = f"{SIGNS[first.change]} {outline.names([job.job_type for job in jobs])}"
    tells_rate = len(jobs) == 1 or first.slots
    yield f"{head}: {outline.rate(first)}" if tells_rate else head
    yield from _fields(outline.shown_fields(first), first.change)
    yield from _notes(first.notes)
    if first.change is Change.CHANGED and first.slots:
        yield f"{INDENT}slots {outline.compared(first, preview)}, on the clock of {first.timezone}"
        yield from (f"{INDENT}  {line}" for line in outline.slots(first))


def _fields(fields: tuple[FieldChange, ...], kind: Change) -> Iterator[str]:
    names = [outline.key(change) for change in fields]
    width = max(map(len, names), default=0)
    for name, change in zip(names, fields, strict=True):
        yield f"{INDENT}{name:<{width}}  {outline.before_and_after(change, kind)}"


def _notes(notes: tuple[Note, ...]) -> Iterator[str]:
    for note in notes:
        yield f"{INDENT}{MARKS[note.level]} {note.text}"
