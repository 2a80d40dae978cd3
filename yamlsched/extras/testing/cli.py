"""``yamlsched invoke``: call a handler in this process."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any, NoReturn

import click

from yamlsched import durations, plugin_manager
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.cli.enqueue import payload_option
from yamlsched.db.dsn import redactor
from yamlsched.errors import NoDatabase, Refused
from yamlsched.extras.testing.commands import run_command
from yamlsched.extras.testing.fake_run import FakeRun, call, claimed
from yamlsched.handler.calls import payload_mismatch, resolve
from yamlsched.handler.run import Trigger, UpstreamRun
from yamlsched.runs.lifecycle import AttemptEnd, EndKind, error_text
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import load_file
from yamlsched.schedule.paths import search_path
from yamlsched.text import did_you_mean


@verb(
    "Call the handler of JOB in this process, or run its command, for development. Creates no"
    " run, and only shows the runs that the handler enqueues. run.transaction() does commit if"
    " a database is available.",
    uses="file dsn env",
)
@click.argument("job", shell_complete=_filters.jobs)
@payload_option(
    "--payload",
    help="Keyword arguments that override those of schedules.yaml.",
)
@payload_option(
    "--upstream",
    help=('The results of the jobs it follows, by name: {"extract": {"rows": 7}}. Default: null.'),
)
@payload_option(
    "--trigger",
    help=(
        'For a hook, the attributes of run.trigger: {"job_type": "charge",'
        ' "error": "no route to host"}.'
    ),
)
@_filters.path_option
def command(
    settings: Settings,
    /,
    job: str,
    payload: dict[str, Any] | None,
    upstream: dict[str, Any] | None,
    trigger: dict[str, Any] | None,
    paths: tuple[str, ...],
) -> int:
    loaded = load_file(
        settings.file, settings.env, "; name the schedule with --file or YAMLSCHED_FILE"
    )
    entry = loaded.jobs.get(job)
    if entry is None:
        wrong = any(f'"{job}"' in diagnostic.message for diagnostic in loaded.diagnostics)
        hint = (
            "To see what is wrong with it: yamlsched validate"
            if wrong
            else did_you_mean(job, loaded.jobs)
        )
        raise Refused(f'no valid job "{job}" in {settings.file}. {hint}'.rstrip())
    sys.path[:0] = map(str, search_path(settings.file, loaded.paths, paths))
    values: dict[str, Any] = {
        "job_type": job,
        "payload": {**entry.payload, **(payload or {})},
        "max_attempts": entry.max_attempts,
    }
    results = upstream or {}
    if unknown := results.keys() - set(entry.after):
        raise Refused(
            f'"{job}" does not follow {", ".join(sorted(unknown))}.'
            f" {did_you_mean(min(unknown), entry.after)}".rstrip()
        )
    values["upstream"] = {name: UpstreamRun(result=results.get(name)) for name in entry.after}
    if trigger is not None:
        values["trigger"] = _trigger(trigger)
    if entry.command:
        return _run_command(settings, entry, FakeRun(**values))
    assert entry.handler is not None
    with contextlib.ExitStack() as stack:
        dsn, connection = "", None
        with contextlib.suppress(NoDatabase):
            dsn = stack.enter_context(settings.database())
            connection = stack.enter_context(settings.connect(for_handler=True))
        run = FakeRun(**values, connection=connection, dsn=dsn)
        on_end = None
        try:
            handler = resolve(entry.handler)
            mismatch = payload_mismatch(handler, entry.handler, tuple(run.payload))
            on_end = None if mismatch else _note_start(run, dsn)
            result = None if mismatch else call(handler, run)
            _note_end(on_end, None)
        except Exception as error:  # the author of the handler wants to see its traceback
            _note_end(
                on_end,
                AttemptEnd(
                    EndKind.RAISED, str(error), type(error).__name__, traceback.format_exc()
                ),
            )
            traceback.print_exc()
            return 1
    if mismatch:
        raise Refused(mismatch)
    if run.reports:
        click.echo(f"progress: {run.reports[-1]}", err=True)
    for enqueued in run.enqueued:
        click.echo(
            f"would enqueue {enqueued.job} {json.dumps(enqueued.payload)} key={enqueued.key}",
            err=True,
        )
    click.echo(
        json.dumps({"format_version": 1, "result": result} if settings.wants_json else result)
    )
    return 0


def _trigger(values: dict[str, Any]) -> Trigger:
    """Return ``run.trigger`` with these attributes."""
    known = [field.name for field in fields(Trigger)]
    if unknown := values.keys() - set(known):
        raise Refused(f"run.trigger has no {min(unknown)}. {did_you_mean(min(unknown), known)}")
    try:
        slot = values.get("scheduled_for")
        return Trigger(**{**values, "scheduled_for": slot and datetime.fromisoformat(slot)})
    except (TypeError, ValueError) as error:
        raise Refused(f"scheduled_for of --trigger is not a time: {error}") from error


def _run_command(settings: Settings, job: Job, run: FakeRun) -> int:
    """Run a command as a worker does, with our stdout and stderr; with JSON, its output goes to
    stderr.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, _exit)
    options = {"stdout": sys.stderr.fileno()} if settings.wants_json else {}
    on_end = _note_start(run, "")
    called = run_command(job, settings.file, run, **options)
    end, outcome = called.end, called.outcome
    _note_end(on_end, end)
    error = error_text(end.error_type, end.error) or end.error_type
    if settings.wants_json:
        answer = {
            "result": None,
            "outcome": outcome,
            "exit_code": called.status,
            "error": error or None,
        }
        click.echo(json.dumps({"format_version": 1, **answer}))
    if end.is_success:
        return 0
    means = "the run would be dead" if outcome == "dead" else "the attempt would have failed"
    later = f", and be retried after {durations.show(end.delay)}" if end.delay is not None else ""
    click.echo(f"{error}: {means}{later}", err=True)
    return 1


def _note_start(run: FakeRun, dsn: str) -> Callable[[AttemptEnd | None], None] | None:
    """Tell plugins of the call, as a worker does of an attempt."""
    return plugin_manager.start(
        "handler_started",
        run=claimed(run),
        namespace=run.backend.namespace,
        redact=redactor(dsn),
    )


def _note_end(on_end: Callable[[AttemptEnd | None], None] | None, end: AttemptEnd | None) -> None:
    if on_end is not None:
        on_end(end)
        plugin_manager.answers("process_exiting")


def _exit(number: int, frame: object) -> NoReturn:
    """Exit as the signal would have, once the command is stopped: it is in a session of its own,
    and would go on.
    """
    raise SystemExit(128 + number)
