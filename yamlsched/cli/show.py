"""``yamlsched show``: everything about one run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from yamlsched import durations
from yamlsched import text as terminal
from yamlsched.cli import FINDINGS, OK
from yamlsched.cli._settings import Settings, Verb
from yamlsched.show import terminal as _output

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.ask.runs import KeptOutput, RunDetails

MAX_LINES = 12
"""Lines of a stack or of output that are shown without --full: the last ones."""
MAX_LINE_CHARS = 400
"""Characters of each of them."""
FOLLOW_INTERVAL_SECONDS = 1.0


@click.command(
    cls=Verb,
    uses="file dsn namespace",
    help="Show RUN: its attempts, errors, output, effects, and the runs it enqueued. RUN is an id or a key.",
)
@click.argument("name", metavar="RUN")
@click.option("--full", is_flag=True, help="Show full stack traces and output.")
@click.option("--output", is_flag=True, help="Print only the kept output, in full, of the last attempt that has some.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="With --output: of attempt N.")
@click.option("--follow", is_flag=True, help="Print what its attempts print, until it has ended; exit 1 if it is dead.")
@click.pass_obj
def command(settings: Settings, /, name: str, full: bool, output: bool, attempt: int | None, follow: bool) -> int:
    from yamlsched.ask import history
    from yamlsched.db.query import now

    if attempt is not None and not output:
        raise click.UsageError("--attempt needs --output")
    if follow and (output or full or settings.wants_json):
        raise click.UsageError("--follow prints text as it comes: leave out --output, --full and --format json")
    namespace = ""
    with settings.connect() as connection:
        if not history.is_id(name):
            namespace = history.namespace_of(connection, settings.namespace, settings.file)
        id = history.find(connection, namespace, name)
        if follow:
            return _follow(connection, id)
        details = history.run_details(connection, id)
        instant = now(connection)
    if output:
        kept = history.kept_output(details, attempt)
        if settings.wants_json:
            click.echo(_output.document(output=kept))
            return 0
        if kept.omitted_bytes:
            size, omitted = map(terminal.show_bytes, (len(kept.output.encode()), kept.omitted_bytes))
            click.echo(f"the last {size}: {omitted} before it were not kept", err=True)
        click.echo(printed(kept.output))
        return 0
    if settings.wants_json:
        click.echo(_output.document(**document(details)))
        return 0
    sections = [
        _output.fields((name, value) for name, value in facts(details, instant) if value),
        "\n".join(attempts(details, full)),
        effects(details),
        "\n".join(relatives(details)),
        "\n".join(_output.printable_line(action) for action in actions(details)),
    ]
    click.echo("\n\n".join(filter(None, sections)))
    return 0


def document(details: RunDetails) -> dict[str, Any]:
    """Return the parts of the JSON document."""
    from yamlsched.ask.edits import as_fields

    names = ("run", "retried_attempts", "outputs", "progress", "effects", "children", "actions")
    parts = {name: getattr(details, name) for name in names}
    return parts | {"attempts": details.failures, "parent_id": details.run.parent_id, **as_fields(details.edits)}


def _follow(connection: Connection[Any], id: int) -> int:
    """Print what the attempts of a run print, as far as it is in the database, until the run has ended."""
    from yamlsched.ask import history

    seen: dict[tuple[int, str], int] = {}  # bytes of each attempt that were printed, or left out
    was_running = True
    while True:
        details = history.run_details(connection, id, all_texts=False)
        for kept in details.outputs:
            if kept.attempt in (details.texts or ()):
                content, key = kept.output.encode(), (kept.attempt, kept.worker)
                before, total = seen.get(key, 0), kept.omitted_bytes + len(content)
                if total - before > len(content):
                    left_out = terminal.show_bytes(total - before - len(content))
                    click.echo(f"attempt {kept.attempt}: {left_out} before this were not kept", err=True)
                if total > before:
                    new = content[max(0, len(content) - (total - before)) :].decode("utf-8", "ignore")
                    click.echo(printed(new))
                    seen[key] = total
        if details.run.finished_at is not None and not was_running:
            break
        was_running = details.run.finished_at is None  # what it printed last may be written a moment after its end
        time.sleep(FOLLOW_INTERVAL_SECONDS)
    click.echo(f"run {id}: {details.run.status}", err=True)
    return FINDINGS if details.run.status == "dead" else OK


def facts(details: RunDetails, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what the run is and of its state."""
    from yamlsched.ask.history import next_step, waits_for
    from yamlsched.ask.runs import took
    from yamlsched.runs.lifecycle import Status, error_text

    run = details.run
    is_call = run.dead_run_id is not None
    yield (
        "run",
        f"{run.id} of {run.job_type}"
        + (f": on_dead call for run {run.dead_run_id}" if is_call else f" ({run.handler or shlex.join(run.command)})"),
    )
    yield "key", run.key or "none"
    yield "status", _output.Styled(_output.coloured(run.status) + _output.printable_line(waits_for(run, now)))
    if not is_call:
        finish = f", finish_within: {durations.show(run.finish_within)}" if run.finish_within else ""
        limits = f"no (start_within: {durations.show(run.start_within)}{finish})"
        yield "late", "; ".join(run.lateness(now)) or limits
    yield "priority", run.priority
    yield "attempts", f"{run.attempts} of {run.max_attempts}"
    if run.status == Status.RUNNING and run.progress is not None:
        yield "progress", f"{run.progress}, {_output.ago(run.progress.reported_at, now)}"
    no_slot = "none" if is_call else "none: enqueued"
    yield "slot", _output.instant(run.scheduled_for) if run.scheduled_for else no_slot
    yield "created", _output.instant(run.created_at)
    if run.started_at:
        yield "started", _output.instant(run.started_at)
    if run.finished_at:
        last_took = took(run)
        last = f", the last attempt took {durations.show(last_took)}" if last_took is not None else ""
        yield "finished", _output.instant(run.finished_at) + last
    yield "owner", run.owner
    if details.edits is not None:
        from yamlsched.ask.edits import sentences

        in_force, changed = sentences(details.edits)
        yield "file", in_force
        yield "job edited", changed
    yield "payload", _json(run.payload) if run.payload else ""
    yield "result", _json(run.result) if run.result is not None else ""
    yield "error", error_text(run.error_type, run.last_error) if run.status != "succeeded" else ""
    yield "next", next_step(run, [effect.key for effect in details.effects if effect.state == "in_doubt"], now)


def attempts(details: RunDetails, full: bool) -> Iterator[str]:
    """Yield the lines of the attempts."""
    from yamlsched.ask import runs as attempts

    for record in attempts.attempts(details):
        if record.status == "released":
            head = f"attempt {record.number}  released  {_output.instant(record.ended_at)}"
            yield f"{head}  {_output.printable_line(record.worker)}"
        else:
            took = f"  took {durations.show(record.took)}" if record.took is not None else ""
            took += f"  {record.used}" if record.used else ""
            head = f"attempt {record.number}  {_output.coloured(record.status)}  {_output.instant(record.started_at)}"
            revision = f"  revision {record.revision}" if record.revision else ""
            yield f"{head}{took}  {_output.printable_line((record.worker or '-') + revision)}"
        if record.progress is not None and record.status != "running":
            at = _output.instant(record.progress.reported_at)
            yield _output.printable_line(f"    reached {record.progress}, at {at}")
        if record.status == "failed":
            yield _output.printable(f"    {record.error}")
            yield from block("stack", record.stack, full)
        yield from output_block(record.output, full)


def block(name: str, text: str | None, full: bool) -> list[str]:
    """Return the end of ``text``, indented, under its name."""
    if not text or not text.strip():
        return []
    lines = _output.printable(text).rstrip().split("\n")
    omitted = 0 if full else max(0, len(lines) - MAX_LINES)
    head = f"    {name}:" + (f" ({omitted} earlier lines; --full shows them)" if omitted else "")
    return [head, *(f"      {line if full else terminal.truncate(line, MAX_LINE_CHARS)}" for line in lines[omitted:])]


def output_block(kept: KeptOutput | None, full: bool) -> list[str]:
    """Return the end of what an attempt printed, indented."""
    if kept is None:
        return []
    is_cut = kept.omitted_bytes and full
    omitted = f", after {terminal.show_bytes(kept.omitted_bytes)} that were not kept" if is_cut else ""
    until = "" if kept.is_final else f" until {_output.instant(kept.ended_at)}"
    return block(f"output{until}{omitted}", terminal.without_styles(kept.output), full)


def printed(output: str) -> str:
    """Return ``output`` as it may be shown: nothing in it controls a terminal or a CI service."""
    return _output.printable(terminal.without_styles(output)).removesuffix("\n")


def effects(details: RunDetails) -> str:
    rows = [
        (
            e.key,
            "skipped" if e.state == "done" and e.doubted_at else e.state,
            str(e.attempt),
            _output.instant(e.done_at or e.claimed_at),
            e.provider_key,
            _json(e.result) if e.result else "",
        )
        for e in details.effects
    ]
    headings = ("EFFECT", "STATE", "ATTEMPT", "WHEN", "IDEMPOTENCY KEY", "RESULT")
    return _output.table(headings, rows, free_text="RESULT") if rows else ""


def relatives(details: RunDetails) -> Iterator[str]:
    """Yield the run whose handler enqueued this one, and those that this one's handler enqueued."""
    from yamlsched.ask.history import MAX_CHILDREN

    if details.run.parent_id is not None:
        parent = details.parent
        state = f" of {parent.job_type}, {parent.status}" if parent else ", which has been pruned"
        yield f"enqueued by run {details.run.parent_id}{state}"
    if details.children:
        rows = [(str(run.id), run.job_type, _output.coloured(run.status), run.key or "-") for run in details.children]
        yield _output.table(("ENQUEUED", "JOB", "STATUS", "KEY"), rows)
        if len(rows) == MAX_CHILDREN:
            yield f"only the first {MAX_CHILDREN} are shown"


def actions(details: RunDetails) -> Iterator[str]:
    for action in details.actions:
        detail = "".join(f", {name}: {value}" for name, value in action.detail.items())
        yield f"{_output.instant(action.at)}  {action.verb} by {action.who}{detail}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
