"""``yamlsched show``: everything about one run."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
from psycopg import Connection

from yamlsched import durations
from yamlsched import text as terminal
from yamlsched.ask import health, history, runs
from yamlsched.ask.edits import sentences
from yamlsched.ask.runs import AttemptRecord, KeptOutput, RunDetails, took
from yamlsched.cli import FINDINGS, OK
from yamlsched.cli._settings import Settings, verb
from yamlsched.db.query import now
from yamlsched.runs.lifecycle import DEFAULT_QUEUE, Status, error_text
from yamlsched.show import terminal as _output
from yamlsched.show.document import Document, Entries, Entry, Facts, Part, Section
from yamlsched.show.html import FORMATS

MAX_LINES = 12
"""Lines of a stack or of output that are shown without --full: the last ones."""
MAX_LINE_CHARS = 400
"""Characters of each of them."""
FOLLOW_INTERVAL_SECONDS = 1.0


@verb(
    "Show RUN: its attempts, errors, output, effects, and the runs it enqueued. RUN is an id or"
    " a key.",
    formats=tuple(FORMATS),
)
@click.argument("name", metavar="RUN")
@click.option("--full", is_flag=True, help="Show full stack traces and output.")
@click.option(
    "--output",
    is_flag=True,
    help="Print only the kept output, in full, of the last attempt that has any.",
)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="With --output: only attempt N."
)
@click.option(
    "--follow",
    is_flag=True,
    help="Follow the output of the run until it ends; exit 1 if it is dead.",
)
def command(
    settings: Settings, /, name: str, full: bool, output: bool, attempt: int | None, follow: bool
) -> int:
    if attempt is not None and not output:
        raise click.UsageError("--attempt needs --output")
    if output and settings.format not in ("text", "json"):
        raise click.UsageError("--output prints text or JSON: leave out --format")
    if follow and (output or full or settings.format != "text"):
        raise click.UsageError(
            "--follow prints text as it comes: leave out --output, --full and --format"
        )
    with settings.connect() as connection:
        id = history.find(connection, settings.namespace_of_runs(connection, [name]), name)
        if follow:
            return _follow(connection, id)
        details = history.run_details(connection, id)
        instant = now(connection)
        reasons = health.why_not_claimed(connection, details.run, instant) if not output else []
    if not output:
        document = Document(f"yamlsched show {id}", in_words(details, instant, full, reasons))
        settings.echo(FORMATS[settings.format](document), **vars(details))
        return OK
    kept = history.kept_output(details, attempt)
    if kept.omitted_bytes and not settings.wants_json:
        size, omitted = map(terminal.show_bytes, (len(kept.output.encode()), kept.omitted_bytes))
        click.echo(f"the last {size}: {omitted} before it were not kept", err=True)
    settings.echo(printed(kept.output), output=kept)
    return OK


def in_words(
    details: RunDetails, now: datetime, full: bool, reasons: Sequence[str] = ()
) -> Iterator[Part]:
    """Yield what is shown of a run, and why no worker claims it."""
    pairs = [(name, value) for name, value in facts(details, now) if value]
    yield Facts([*pairs, *(("no worker", line) for line in reasons)])
    if records := runs.attempts(details):
        yield Entries([attempt(record, full) for record in records])
    if details.effects:
        headings = ("effect", "state", "attempt", "when", "idempotency key", "result")
        yield Section("", headings, list(effects(details)))
    yield from relatives(details)
    if details.actions:
        yield Entries([Entry(action) for action in actions(details)])


def _follow(connection: Connection[Any], id: int) -> int:
    """Print what the attempts of a run print, as far as it is in the database, until the run has
    ended.
    """
    seen = Counter[tuple[int, str]]()  # bytes of each attempt that were printed, or left out
    was_running = True
    while True:
        details = history.run_details(connection, id, all_texts=False)
        for kept in details.outputs:
            if kept.attempt in (details.texts or ()):
                content, key = kept.output.encode(), (kept.attempt, kept.worker)
                new = kept.omitted_bytes + len(content) - seen[key]
                if new > len(content):
                    left_out = terminal.show_bytes(new - len(content))
                    click.echo(
                        f"attempt {kept.attempt}: {left_out} before this were not kept", err=True
                    )
                if new > 0:
                    click.echo(printed(content[-new:].decode("utf-8", "ignore")))
                    seen[key] += new
        if details.run.finished_at is not None and not was_running:
            break
        # what it printed last may be written a moment after its end
        was_running = details.run.finished_at is None
        time.sleep(FOLLOW_INTERVAL_SECONDS)
    click.echo(f"run {id}: {details.run.status}", err=True)
    return FINDINGS if details.run.status == "dead" else OK


def facts(details: RunDetails, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what the run is and of its state."""
    run = details.run
    yield "run", f"{run.id} of {run.job_type} ({run.handler or shlex.join(run.command)})"
    yield "key", run.key or "none"
    yield (
        "status",
        _output.Styled(
            _output.coloured(run.status) + _output.printable_line(history.waits_for(run, now))
        ),
    )
    finish = f", finish_within: {durations.show(run.finish_within)}" if run.finish_within else ""
    limits = f"no (start_within: {durations.show(run.start_within)}{finish})"
    yield "late", "; ".join(run.lateness(now)) or limits
    yield "priority", run.priority
    if run.queue != DEFAULT_QUEUE:
        yield "queue", run.queue
    yield "attempts", f"{run.attempts} of {run.max_attempts}"
    if run.status == Status.RUNNING and run.progress is not None:
        yield "progress", f"{run.progress}, {_output.ago(run.progress.reported_at, now)}"
    no_slot = "none: a hook" if run.hook else "none: enqueued"
    yield "slot", _output.instant(run.scheduled_for) if run.scheduled_for else no_slot
    yield "created", _output.instant(run.created_at)
    if run.started_at:
        yield "started", _output.instant(run.started_at)
    if run.finished_at:
        last_took = took(run)
        last = (
            f", the last attempt took {durations.show(last_took)}" if last_took is not None else ""
        )
        yield "finished", _output.instant(run.finished_at) + last
    yield "owner", run.owner
    if details.edits is not None:
        in_use, changed = sentences(details.edits)
        yield "file", in_use
        yield "job edited", changed
    yield "payload", _json(run.payload) if run.payload else ""
    yield "result", _json(run.result) if run.result is not None else ""
    yield "error", error_text(run.error_type, run.last_error) if run.status != "succeeded" else ""
    yield (
        "next",
        history.next_step(
            run, [effect.key for effect in details.effects if effect.state == "in_doubt"]
        ),
    )
    yield "to stop", f"yamlsched cancel {run.id}" if run.status == Status.RUNNING else ""


def attempt(record: AttemptRecord, full: bool) -> Entry:
    """Return what is shown of an attempt."""
    if record.status == "ended":
        words = ["ended", _output.instant(record.ended_at), record.worker]
    else:
        took = f"took {durations.show(record.took)}" if record.took is not None else ""
        revision = f"revision {record.revision}" if record.revision else ""
        words = [
            _output.coloured(record.status),
            _output.instant(record.started_at),
            took,
            record.used,
        ]
        words += [record.worker or "-", revision]
    below = []
    if record.progress is not None and record.status != "running":
        below.append(
            Entry(f"reached {record.progress}, at {_output.instant(record.progress.reported_at)}")
        )
    if record.status == "failed":
        below += [
            Entry(_output.Styled(_output.printable(record.error))),
            *block("stack", record.stack, full),
        ]
    head = "  ".join(
        map(_output.printable_line, filter(None, [f"attempt {record.number}", *words]))
    )
    return Entry(_output.Styled(head), entries=[*below, *output_block(record.output, full)])


def block(name: str, text: str | None, full: bool) -> Iterator[Entry]:
    """Yield the end of ``text`` under its name, if there is any."""
    if text and text.strip():
        lines = _output.printable(text).rstrip().split("\n")
        omitted = 0 if full else max(0, len(lines) - MAX_LINES)
        head = f"{name}:" + (f" ({omitted} earlier lines; --full shows them)" if omitted else "")
        yield Entry(
            head,
            [line if full else terminal.truncate(line, MAX_LINE_CHARS) for line in lines[omitted:]],
        )


def output_block(kept: KeptOutput | None, full: bool) -> Iterator[Entry]:
    """Yield the end of what an attempt printed."""
    if kept is not None:
        is_cut = kept.omitted_bytes and full
        omitted = (
            f", after {terminal.show_bytes(kept.omitted_bytes)} that were not kept"
            if is_cut
            else ""
        )
        until = "" if kept.is_final else f" until {_output.instant(kept.ended_at)}"
        yield from block(f"output{until}{omitted}", terminal.without_styles(kept.output), full)


def printed(output: str) -> str:
    """Return ``output`` as it may be shown: nothing in it controls a terminal or a CI service."""
    return _output.printable(terminal.without_styles(output)).removesuffix("\n")


def effects(details: RunDetails) -> Iterator[tuple[str, ...]]:
    for effect in details.effects:
        yield (
            effect.key,
            "skipped" if effect.state == "done" and effect.doubted_at else effect.state,
            str(effect.attempt),
            _output.instant(effect.done_at or effect.claimed_at),
            effect.provider_key,
            _json(effect.result) if effect.result else "",
        )


def relatives(details: RunDetails) -> Iterator[Section]:
    """Yield the run that enqueued this one, or whose end it reports as a hook; the runs that this
    one enqueued, and those of its hooks.
    """
    run, parent = details.run, ""
    if run.parent_id is not None:
        state = (
            f" of {details.parent.job_type}, {details.parent.status}"
            if details.parent
            else ", which has been pruned"
        )
        why = f"reports {runs.ENDS[run.hook]} of" if run.hook else "enqueued by"
        parent = _output.Styled(_output.printable_line(f"{why} run {run.parent_id}{state}"))
    if parent or details.children:
        more = (
            f"only the first {history.MAX_CHILDREN} are shown"
            if len(details.children) == history.MAX_CHILDREN
            else ""
        )
        yield _runs(parent, "enqueued", details.children, more)
    if details.hooks:
        yield _runs("", "hooks", details.hooks)


def _runs(title: str, name: str, rows: Sequence[runs.ChildRun], more: str = "") -> Section:
    cells = [
        (str(run.id), run.job_type, _output.coloured(run.status), run.key or "-") for run in rows
    ]
    return Section(title, (name, "job", "status", "key"), cells, more)


def actions(details: RunDetails) -> Iterator[str]:
    for action in details.actions:
        detail = "".join(f", {name}: {value}" for name, value in action.detail.items())
        yield f"{_output.instant(action.at)}  {action.verb} by {action.who}{detail}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
