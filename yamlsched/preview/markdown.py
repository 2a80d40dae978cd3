"""A preview as a comment of a pull request: a line, a table, the warnings; fields and slots folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yamlsched.preview import outline, plan_text
from yamlsched.preview.planning import Planned
from yamlsched.preview.values import Change, FieldChange, JobChange, Level, Preview
from yamlsched.terminal import escape_line

ROWS = 50
"""At most this many rows of the table, and jobs with details."""
LONGEST = 55_000
"""Characters: forges take 65,536 in one comment."""
ARROW = "→"
MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
LINKED = re.compile(r"@|www(?=\.)|:(?=//)")
"""What forges turn into a mention or a link."""
ZERO_WIDTH_SPACE = "&#8203;"


def render(preview: Preview) -> str:
    """Return the comment."""
    where = f" in {code(preview.environment)}" if preview.environment else ""
    what = f"{code(preview.base.name)} {ARROW} {code(preview.head.name)}{where}"
    return _comment([f"**yamlsched diff** {what}: {prose(outline.headline(preview))}."], preview)


def render_plan(plan: Planned) -> str:
    """Return the comment for a plan: what it knows of the database first, then what diff shows."""
    _, *facts = plan_text.head(plan)
    lines = [f"**yamlsched plan** of namespace {code(plan.preview.head.namespace)}", ""]
    lines += [f"- {prose(' '.join(fact.split()))}" for fact in facts]
    for title, found in plan_text.sections(plan):
        if found:
            more = [f"- and {len(found) - ROWS} more"] * (len(found) > ROWS)
            lines += ["", f"{title}: {len(found)}", "", *(f"- {code(line)}" for line in found[:ROWS]), *more]
    return _comment(lines, plan.preview)


def _comment(lines: list[str], preview: Preview) -> str:
    lines = [*lines, *_file(preview)]
    groups = outline.groups(preview)
    if groups:
        lines += ["", "| | job | slots a week | what changes |", "| --- | --- | --- | --- |"]
        lines += [_row(jobs) for jobs in groups[:ROWS]]
        if len(groups) > ROWS:
            lines.append(f"| | and {len(groups) - ROWS} more | | |")
    lines += _warnings(preview)
    lines += _details(groups, preview, LONGEST - sum(len(line) + 1 for line in lines))
    return "\n".join(lines)


def code(text: str) -> str:
    """Return ``text`` as code, whatever is in it, also inside a table."""
    text = escape_line(text)
    if "|" in text or not text.strip():
        # a table is split at pipes before it knows of code, and how to escape them depends on backslashes
        return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in text)}</code>"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " * bool(longest)
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """Return a sentence so that nothing in it is markup."""
    escaped = escape_line(text).rstrip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = MARKUP.sub(lambda found: "\\" + found[0], escaped)
    return LINKED.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, escaped)


def _file(preview: Preview) -> Iterator[str]:
    if preview.fields:
        yield ""
        yield from _fields(preview.fields, Change.CHANGED)


def _row(jobs: list[JobChange]) -> str:
    first = jobs[0]
    named = ", ".join(code(job.job_type) for job in jobs[: outline.NAMED])
    if len(jobs) > outline.NAMED:
        named += f" and {len(jobs) - outline.NAMED} more"
    before, after = outline.number(first.per_week_before), outline.number(first.per_week_after)
    rates = {Change.ADDED: after, Change.REMOVED: before}.get(
        first.change, after if before == after else f"{before} {ARROW} {after}"
    )
    if len(jobs) > 1 and not first.slots:
        rates = ""
    return f"| {first.change} | {named} | {rates} | {_what(first)} |"


def _what(job: JobChange) -> str:
    if job.change is not Change.CHANGED:
        shown = [f"{code(outline.before_and_after(one, job.change))}" for one in job.fields if one.field == "cron"]
        if job.next_slot_at:
            shown.append(f"next {outline.clock(job.next_slot_at, job.timezone)} {job.timezone}")
        return ", ".join(shown) or "runs when enqueued"
    fields = ", ".join(code(outline.key(one)) for one in job.fields)
    slots = outline.slots_in_short(job)
    return f"{fields}: {slots}" if slots else fields


def _warnings(preview: Preview) -> Iterator[str]:
    found = [f"{code(job)}: {prose(text)}" if job else prose(text) for job, text in outline.warnings(preview)]
    found += [prose(outline.pile_up(one, preview)) for one in preview.pile_ups]
    if found:
        yield ""
        yield from (f"- :warning: {text}" for text in found[:ROWS])
        if len(found) > ROWS:
            yield f"- and {len(found) - ROWS} more warnings"


def _details(groups: list[list[JobChange]], preview: Preview, room: int) -> Iterator[str]:
    """Yield the folded part, as many jobs as there is room for."""
    quiet = [note.text for note in preview.notes if note.level is Level.NOTE]
    if not groups and not quiet:
        return
    days = outline.count(preview.days, "day")
    at = f"{preview.at:%Y-%m-%d %H:%M} UTC"
    yield from ("", "<details>", f"<summary>Fields, effects, and slots of {days} if applied {at}</summary>", "")
    yield from (f"- {prose(text)}" for text in quiet)
    for shown, jobs in enumerate(groups):
        block = list(_block(jobs, preview))
        room -= sum(len(line) + 1 for line in block)
        if room < 0 or shown == ROWS:
            yield from (f"and {len(groups) - shown} more: `yamlsched diff` without `--format markdown` shows all.", "")
            break
        yield from block
    yield "</details>"


def _block(jobs: list[JobChange], preview: Preview) -> Iterator[str]:
    first = jobs[0]
    yield f"**{first.change}** " + ", ".join(code(job.job_type) for job in jobs[:ROWS])
    if len(jobs) > ROWS:
        yield f"and {len(jobs) - ROWS} more"
    fields = outline.shown_fields(first)
    if fields:
        yield ""
        yield from _fields(fields, first.change)
    lines = [prose(note.text) for note in first.notes]
    if len(jobs) == 1 or first.slots:
        lines.append(prose(outline.rate(first)))
    yield from ("", *(f"- {line}" for line in lines))
    if first.change is Change.CHANGED and first.slots:
        if first.slots.compared_until:
            yield f"- only slots {outline.compared(first, preview)} are compared"
        yield from ("", "```", *outline.slots(first), "```")
    yield ""


def _fields(fields: tuple[FieldChange, ...], kind: Change) -> Iterator[str]:
    if kind is not Change.CHANGED:
        yield from ("| key | value |", "| --- | --- |")
        yield from (f"| {code(outline.key(one))} | {code(outline.before_and_after(one, kind))} |" for one in fields)
        return
    yield from ("| key | before | after |", "| --- | --- | --- |")
    for one in fields:
        before, after = (code(outline.written(value)) if value is not None else "" for value in (one.before, one.after))
        yield f"| {code(outline.key(one))} | {before} | {after} |"
