"""``yamlsched show``: everything about one run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli import _filters, _output
from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli.runs import between, took

if TYPE_CHECKING:
    from yamlsched.operations.history import RunDetails

MAX_LINES = 12
"""So many lines of a stack or of output are shown, the last ones; --full shows all."""


@click.command(cls=Verb, help="Show RUN, an id or a key: its attempts, errors, output, effects, and what it enqueued.")
@click.argument("name", metavar="RUN")
@click.option("--full", is_flag=True, help="Show full stack traces and output.")
@_filters.namespace_option
@click.pass_obj
def command(settings: Settings, /, name: str, full: bool, namespace: str | None) -> int:
    from yamlsched.operations import history
    from yamlsched.store.history import now

    with settings.connect() as connection:
        if not history.is_id(name):
            namespace = history.namespace_of(connection, namespace, settings.file)
        details = history.run_details(connection, history.find(connection, namespace or "", name))
        instant = now(connection)
    if settings.wants_json:
        click.echo(
            _output.document(
                run=details.run,
                attempts=details.failures,
                effects=details.effects,
                parent_id=details.run.parent_id,
                children=details.children,
                actions=details.actions,
            )
        )
        return 0
    parts = [facts(details, instant), attempts(details, full), effects(details), relatives(details), actions(details)]
    click.echo("\n\n".join(part for part in parts if part))
    return 0


def facts(details: RunDetails, now: Any) -> str:
    """Return what the run is and how it stands."""
    from yamlsched.operations.history import next_step

    run = details.run
    more = ""
    if run.status == "running":
        over = run.locked_until is not None and run.locked_until < now
        more = f" on {run.worker}, lease {'expired at' if over else 'until'} {_output.instant(run.locked_until)}"
    elif run.status == "failed" or (run.status == "queued" and run.run_at > now):
        more = f", due {_output.instant(run.run_at)} ({_output.ago(run.run_at, now)})"
    state = _output.Styled(_output.coloured(run.status) + _output.printable_cell(more))
    lines = [
        ("run", f"{run.id} of {run.job_type} ({run.handler})" if run.dead_run_id is None else _report(run)),
        ("key", run.key or "none"),
        ("status", state),
        ("attempts", f"{run.attempts} of {run.max_attempts}"),
        ("slot", _output.instant(run.scheduled_for) if run.scheduled_for else _no_slot(run)),
        ("made", _output.instant(run.created_at)),
        ("started", _output.instant(run.started_at) if run.started_at else ""),
        ("finished", _ended(run) if run.finished_at else ""),
        ("owner", run.owner),
        ("payload", _json(run.payload) if run.payload else ""),
        ("result", _json(run.result) if run.result is not None else ""),
        (
            "error",
            f"{run.error_type or 'error'}: {run.last_error}" if run.last_error and run.status != "succeeded" else "",
        ),
        ("next", next_step(run, [effect.key for effect in details.effects if effect.state == "in_doubt"])),
    ]
    return "\n".join(f"{name:<10} {_output.printable_cell(text)}" for name, text in lines if text)


def _report(run: Any) -> str:
    return f"{run.id} of {run.job_type}: on_dead call for run {run.dead_run_id}"


def _no_slot(run: Any) -> str:
    return "none: enqueued" if run.dead_run_id is None else "none"


def _ended(run: Any) -> str:
    time = took(run)
    return _output.instant(run.finished_at) + (f", the last attempt took {time}" if time != "-" else "")


def attempts(details: RunDetails, full: bool) -> str:
    """Return the attempts, the failed ones from the audit trail, the last from the run itself."""
    lines = []
    for failure in details.failures:
        head = f"attempt {failure.attempt}  {_output.coloured('failed')}  {_output.instant(failure.started_at)}"
        worker = _output.printable_cell(failure.worker)
        lines.append(f"{head}  took {between(failure.started_at, failure.failed_at)}  {worker}")
        lines.append(_output.printable(f"    {failure.error_type or 'error'}: {failure.error}"))
        for name, text in (("stack", failure.stack), ("output", failure.output)):
            lines += block(name, text, full)
    run = details.run
    recorded = {failure.attempt for failure in details.failures}
    if run.attempts and run.attempts not in recorded and run.status in ("succeeded", "running", "cancelled"):
        time = took(run)
        last = f"  took {time}" if time != "-" else ""
        head = f"attempt {run.attempts}  {_output.coloured(run.status)}  {_output.instant(run.started_at)}"
        lines.append(f"{head}{last}  {_output.printable_cell(run.worker or '-')}")
    return "\n".join(lines)


def block(name: str, text: str | None, full: bool) -> list[str]:
    """Return the end of ``text``, indented, under its name."""
    if not text or not text.strip():
        return []
    shown = _output.printable(text).rstrip().split("\n")
    left_out = 0 if full else max(0, len(shown) - MAX_LINES)
    head = f"    {name}:" + (f" ({left_out} earlier lines; --full shows them)" if left_out else "")
    return [head, *(f"      {line}" for line in shown[left_out:])]


def effects(details: RunDetails) -> str:
    if not details.effects:
        return ""
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
    return _output.table(("EFFECT", "STATE", "ATTEMPT", "WHEN", "IDEMPOTENCY KEY", "RESULT"), rows)


def relatives(details: RunDetails) -> str:
    """Return the run whose handler enqueued this one, and those that this one's handler enqueued."""
    from yamlsched.operations.history import MAX_CHILDREN

    lines = []
    if details.run.parent_id is not None:
        parent = details.parent
        state = f" of {parent.job_type}, {parent.status}" if parent else ", which has been pruned"
        lines.append(f"enqueued by run {details.run.parent_id}{state}")
    if details.children:
        rows = [
            (str(child.id), child.job_type, _output.coloured(child.status), child.key or "-")
            for child in details.children
        ]
        lines.append(_output.table(("ENQUEUED", "JOB", "STATUS", "KEY"), rows))
        if len(details.children) == MAX_CHILDREN:
            lines.append(f"only the first {MAX_CHILDREN} are shown")
    return "\n".join(lines)


def actions(details: RunDetails) -> str:
    return "\n".join(
        _output.printable_cell(
            f"{_output.instant(action.at)}  {action.verb} by {action.who}"
            + "".join(f", {name}: {value}" for name, value in action.detail.items())
        )
        for action in details.actions
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
