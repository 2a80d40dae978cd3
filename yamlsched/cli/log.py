"""``yamlsched log``: who changed what, like git log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from yamlsched import text
from yamlsched.ask import edits, history
from yamlsched.ask.edits import ChangedAlike, Edit
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.show import terminal as _output
from yamlsched.sync import field_changes
from yamlsched.sync.field_changes import SIGNS, Change
from yamlsched.timetable import times

MAX_NAMES = 10
"""Jobs of one kind of change that are listed by name."""
MAX_JSON = 10_000
"""Groups of jobs, and names in each, that the JSON document lists."""
INDENT = " " * 4
HELP = """List the edits of schedules.yaml that were applied, newest first.

For each edit it shows the commit with author and subject, the host that applied it and when, and
the jobs that changed. With JOB, it shows only the edits of that job, and what they changed.
"""


@verb(HELP)
@click.argument("job", required=False, shell_complete=_filters.jobs)
@_filters.time_option(
    "--since",
    help=(
        'Edits applied at or after this time: 2026-01-14T02:00Z, 17:30 or "mon 08:00" (the last'
        " one), or 7d (the last 7 days)."
    ),
)
@_filters.page_options(20)
@click.option("-p", "--patch", is_flag=True, help="Show how each job was changed, as diff does.")
@click.option("--oneline", is_flag=True, help="Show one line for each edit.")
def command(
    settings: Settings,
    /,
    job: str | None,
    since: times.TimeInput | None,
    limit: int,
    before: int | None,
    patch: bool,
    oneline: bool,
) -> int:
    wants_changes = (patch or job is not None) and (settings.wants_json or not oneline)
    with settings.connect_in() as (connection, namespace):
        if job is not None:
            history.definitions(connection, namespace, [job], [])  # or there is no such job
        start = _filters.resolve_time(
            connection, namespace, settings.file, "since", since, [job] if job else []
        )
        entries = edits.edits(
            connection, namespace, start, limit=limit + 1, job_type=job, before=before
        )
        page, has_more = entries[:limit], len(entries) > limit
        sizes = {"limit": MAX_JSON, "names": MAX_JSON} if settings.wants_json else {}
        changes = edits.changes(connection, page, job_type=job, **sizes) if wants_changes else {}
    if settings.wants_json:
        listed = [
            vars(edit) | ({"changes": changes[edit.id]} if wants_changes else {}) for edit in page
        ]
        next_before = page[-1].id if has_more else None
        click.echo(_output.document(namespace=namespace, edits=listed, next_before=next_before))
    elif not page:
        is_first = since is None and before is None
        click.echo(
            "no edits yet: yamlsched sync applies schedules.yaml" if is_first else "no edits match",
            err=True,
        )
    elif oneline:
        headings = ("COMMIT", "APPLIED", "AUTHOR", "JOBS", "SUBJECT")
        click.echo(_output.table(headings, map(line, page), free_text="SUBJECT"))
    else:
        blocks = (block(edit, changes.get(edit.id), job) for edit in page)
        click.echo("\n\n".join("\n".join(lines) for lines in blocks))
    if has_more and not settings.wants_json:
        click.echo(f"more: pass --before {page[-1].id}", err=True)
    return 0


def line(edit: Edit) -> tuple[str, ...]:
    """Return the cells of an edit."""
    return (
        edits.commit(edit) or f"file {edit.hash[:8]}",
        _output.instant(edit.applied_at),
        edit.author or "-",
        edits.counts(edit.jobs),
        edit.subject or "",
    )


def block(edit: Edit, changes: Sequence[ChangedAlike] | None, job: str | None) -> Iterator[str]:
    """Yield the lines of an edit: its commit, who applied it, and what it changed; how, if
    ``changes`` are given.
    """
    yield _output.paint(_output.printable_line(_head(edit)), "yellow")
    if edit.author:
        yield f"Author:   {_output.printable_line(edit.author)}"
    of = f", for {edit.environment}" if edit.environment else ""
    place = _output.printable_line(f"{edit.host}:{edit.path}")
    yield f"Applied:  {_output.instant(edit.applied_at)} by {place}, hash {edit.hash[:8]}{of}"
    if edit.subject:
        yield ""
        yield INDENT + _output.printable_line(edit.subject)
    yield ""
    if changes is None:
        yield from _names(edit)
        return
    if job is None:
        yield from _settings(edit, with_values=True)
    yield from _changes(changes, job)
    if not (edit.jobs or edit.after):
        yield f"{INDENT}no job changed"


def _head(edit: Edit) -> str:
    if edit.commit is None:
        return f"file {edit.hash}"
    return f"commit {edit.commit}" + (
        "-dirty (the file differs from this commit)" if edit.is_dirty else ""
    )


def _names(edit: Edit) -> Iterator[str]:
    """Yield which jobs were changed."""
    for kind, summary in edit.jobs.items():
        first = summary["first"][:MAX_NAMES]
        more = summary["jobs"] - len(first)
        yield f"{INDENT}{kind:<9} {', '.join(first)}" + (f" and {more} more" if more else "")
    yield from _settings(edit, with_values=False)
    if not (edit.jobs or edit.after):
        yield f"{INDENT}no job changed"


def _settings(edit: Edit, with_values: bool) -> Iterator[str]:
    """Yield which keys outside of jobs were changed."""
    fields = edits.fields(edit.before, edit.after)
    if fields and not with_values:
        names = [text.truncate(text.escape_line(change.field)) for change in fields]
        yield f"{INDENT}{'file':<9} {text.join_first(names, MAX_NAMES)}"
    elif fields:
        yield f"{INDENT}the file"
        yield from _fields(edit.before, edit.after, Change.CHANGED)


def _changes(changes: Sequence[ChangedAlike], job: str | None) -> Iterator[str]:
    """Yield how jobs were changed: those that were changed alike together."""
    kinds = {"added": Change.ADDED, "retired": Change.REMOVED}
    for group in changes:
        kind = kinds.get(group.change, Change.CHANGED)
        names = group.first[:MAX_NAMES]
        more = f" and {group.jobs - len(names)} more" if group.jobs > len(names) else ""
        returned = " (returned)" if group.change == "returned" else ""
        style = {Change.ADDED: "green", Change.REMOVED: "red", Change.CHANGED: "yellow"}[kind]
        yield INDENT + _output.paint(f"{SIGNS[kind]} {', '.join(names)}{more}{returned}", style)
        if kind is not Change.REMOVED or job is not None:
            yield from _fields(group.before, group.after, kind)
    if changes and changes[0].groups > len(changes):
        yield (
            f"{INDENT}and {changes[0].groups - len(changes)} more changes: --format json lists them"
        )


def _fields(
    before: dict[str, object] | None, after: dict[str, object] | None, kind: Change
) -> Iterator[str]:
    fields = edits.fields(before, after)
    names = [field_changes.field_name(change) for change in fields]
    width = max(map(len, names), default=0)
    for name, change in zip(names, fields, strict=True):
        yield text.escape_ci_commands(
            f"{INDENT * 2}{name:<{width}}  {field_changes.before_and_after(change, kind)}"
        )
