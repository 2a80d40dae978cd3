"""``yamlsched show``: everything about one run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from yamlsched import terminal
from yamlsched.cli import _output
from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli.runs import between, took

if TYPE_CHECKING:
    from yamlsched.operations.history import RunDetails
    from yamlsched.store.history import KeptOutput, StoredRun

MAX_LINES = 12
"""Lines of a stack or of output that are shown without --full: the last ones."""
MAX_LINE_CHARS = 400
"""Characters of each of them."""
STYLES = re.compile(r"\x1b\[[0-9;:]*[mK]|\r+$", re.MULTILINE)
"""What colours a terminal or clears its line, and the end of lines of other systems."""


@click.command(
    cls=Verb,
    uses="file dsn namespace",
    help="Show RUN: its attempts, errors, output, effects, and the runs it enqueued. RUN is an id or a key.",
)
@click.argument("name", metavar="RUN")
@click.option("--full", is_flag=True, help="Show full stack traces and output.")
@click.option("--output", is_flag=True, help="Print only the kept output, in full, of the last attempt that has some.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="With --output: of attempt N.")
@click.pass_obj
def command(settings: Settings, /, name: str, full: bool, output: bool, attempt: int | None) -> int:
    from yamlsched.operations import history
    from yamlsched.store.history import now

    if attempt is not None and not output:
        raise click.UsageError("--attempt needs --output")
    namespace = ""
    with settings.connect() as connection:
        if not history.is_id(name):
            namespace = history.namespace_of(connection, settings.namespace, settings.file)
        details = history.run_details(connection, history.find(connection, namespace, name))
        instant = now(connection)
    if output:
        kept = history.kept_output(details, attempt)
        if settings.wants_json:
            click.echo(_output.document(output=kept))
            return 0
        if kept.omitted_bytes:
            shown, omitted = map(terminal.show_bytes, (len(kept.output.encode()), kept.omitted_bytes))
            click.echo(f"the last {shown}: {omitted} before it were not kept", err=True)
        click.echo(printed(kept.output))
        return 0
    if settings.wants_json:
        parts = {
            name: getattr(details, name)
            for name in ("run", "retried_attempts", "outputs", "effects", "children", "actions")
        }
        click.echo(_output.document(**parts, attempts=details.failures, parent_id=details.run.parent_id))
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


def facts(details: RunDetails, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what the run is and of its state."""
    from yamlsched.operations.history import next_step
    from yamlsched.runs import error_text

    run = details.run
    is_call = run.dead_run_id is not None
    yield (
        "run",
        f"{run.id} of {run.job_type}"
        + (f": on_dead call for run {run.dead_run_id}" if is_call else f" ({run.handler or shlex.join(run.command)})"),
    )
    yield "key", run.key or "none"
    yield "status", _output.Styled(_output.coloured(run.status) + _output.printable_line(waits_for(run, now)))
    yield "priority", run.priority
    yield "attempts", f"{run.attempts} of {run.max_attempts}"
    no_slot = "none" if is_call else "none: enqueued"
    yield "slot", _output.instant(run.scheduled_for) if run.scheduled_for else no_slot
    yield "created", _output.instant(run.created_at)
    if run.started_at:
        yield "started", _output.instant(run.started_at)
    if run.finished_at:
        time = took(run)
        yield "finished", _output.instant(run.finished_at) + (f", the last attempt took {time}" if time != "-" else "")
    yield "owner", run.owner
    yield "payload", _json(run.payload) if run.payload else ""
    yield "result", _json(run.result) if run.result is not None else ""
    yield "error", error_text(run.error_type, run.last_error) if run.status != "succeeded" else ""
    yield "next", next_step(run, [effect.key for effect in details.effects if effect.state == "in_doubt"])


def waits_for(run: StoredRun, now: datetime) -> str:
    if run.status == "running":
        is_over = run.locked_until is not None and run.locked_until < now
        return f" on {run.worker}, lease {'expired at' if is_over else 'until'} {_output.instant(run.locked_until)}"
    if run.status == "failed" or (run.status == "queued" and run.run_at > now):
        return f", due {_output.instant(run.run_at)} ({_output.ago(run.run_at, now)})"
    return ""


def attempts(details: RunDetails, full: bool) -> Iterator[str]:
    """Yield the lines of the attempts: the failed ones from job_failures, the last one from the run itself.

    Those that were cancelled or succeeded before a retry are in the record of the retry.

    An attempt that was released has left only its output: its number is that of the next one.
    """
    from yamlsched.runs import error_text

    run = details.run
    outputs = {(output.attempt, output.worker): output for output in details.outputs}
    found: list[tuple[int, datetime | None, list[str]]] = []
    for failure in details.failures:
        time = between(failure.started_at, failure.failed_at)
        lines = [attempt(failure.attempt, "failed", failure.started_at, time, failure.worker)]
        lines.append(_output.printable(f"    {error_text(failure.error_type, failure.error)}"))
        lines += block("stack", failure.stack, full)
        lines += output_block(outputs.pop((failure.attempt, failure.worker), None), full)
        found.append((failure.attempt, failure.failed_at, lines))
    for one in details.retried_attempts:
        time = between(one.started_at, one.finished_at)
        lines = [attempt(one.attempt, one.status, one.started_at, time, one.worker)]
        lines += output_block(outputs.pop((one.attempt, one.worker or ""), None), full)
        found.append((one.attempt, one.finished_at, lines))
    recorded = {number for number, _, _ in found}
    if run.attempts and run.attempts not in recorded and run.status in ("succeeded", "running", "cancelled"):
        lines = [attempt(run.attempts, run.status, run.started_at, took(run), run.worker)]
        lines += output_block(outputs.pop((run.attempts, run.worker or ""), None), full)
        found.append((run.attempts, run.finished_at, lines))
    for kept in outputs.values():
        head = f"attempt {kept.attempt}  released  {_output.instant(kept.ended_at)}"
        lines = [f"{head}  {_output.printable_line(kept.worker)}", *output_block(kept, full)]
        found.append((kept.attempt, kept.ended_at, lines))
    for _, _, lines in sorted(found, key=lambda item: (item[0], item[1] is None, item[1])):
        yield from lines


def attempt(number: int, status: str, started_at: datetime | None, time: str, worker: str | None) -> str:
    took = f"  took {time}" if time != "-" else ""
    head = f"attempt {number}  {_output.coloured(status)}  {_output.instant(started_at)}"
    return f"{head}{took}  {_output.printable_line(worker or '-')}"


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
    return block(f"output{omitted}", STYLES.sub("", kept.output), full)


def printed(output: str) -> str:
    """Return ``output`` as it may be shown: nothing in it controls a terminal or a CI service."""
    return _output.printable(STYLES.sub("", output)).removesuffix("\n")


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
    from yamlsched.operations.history import MAX_CHILDREN

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
