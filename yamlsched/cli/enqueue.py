"""``yamlsched enqueue``: create a run of a job."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from yamlsched.act import payloads, runs
from yamlsched.act.enqueue import EnqueueResult, enqueue
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.file import MAX_FILE_BYTES
from yamlsched.show import terminal
from yamlsched.timetable.times import TimeInput


class Payload(click.ParamType):  # type: ignore[type-arg]
    """The type of --payload: a JSON object, @FILE, or - for standard input."""

    name = "payload"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, dict):
            return value
        source, text = "", str(value)
        try:
            if text == "-":
                source, text = "standard input: ", sys.stdin.read(MAX_FILE_BYTES + 1)
            elif text.startswith("@"):
                source, text = f"{text[1:]}: ", schedule_file.read(Path(text[1:])).decode("utf-8")
            if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
                raise ValueError(f"it is longer than {MAX_FILE_BYTES:,} bytes")
            return payloads.parse(text)
        except EnvironmentFailed as error:
            self.fail(str(error), param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{source}cannot be read: it is not UTF-8", param, ctx)
        except ValueError as error:
            self.fail(f"{source}{error}", param, ctx)


payload_option = partial(click.option, type=Payload(), metavar="JSON|@FILE|-")


@verb("Create a run of JOB. If --key already has a run, show that run and create none.")
@click.argument("job", shell_complete=_filters.jobs)
@payload_option(
    "--payload",
    "arguments",
    help="Keyword arguments of the handler, as JSON.",
)
@click.option("--key", metavar="KEY", help="Create one run per key: a second enqueue creates none.")
@_filters.time_option(
    "--at",
    "--run-at",
    "at",
    help=(
        'Do not start before: 90m (from now), 17:30 or "mon 08:00" (the next one in the job\'s time'
        ' zone), "tomorrow 08:00", 2026-01-14T02:00 or 2026-01-14T01:00Z.'
    ),
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    help="Runs of a higher level are claimed first [default: the job's].",
)
@_filters.path_option
@_filters.by_option
def command(
    settings: Settings,
    /,
    job: str,
    arguments: dict[str, Any] | None,
    key: str | None,
    at: TimeInput | None,
    priority: Any,
    paths: tuple[str, ...],
    by: str | None,
) -> int:
    with settings.connect_in() as (connection, namespace):
        payloads.check(connection, settings.file, namespace, job, arguments or {}, paths)
        result = enqueue(
            connection,
            namespace,
            job,
            arguments or {},
            key=key,
            at=at,
            file=settings.file,
            priority=priority,
            who=by or runs.operator(),
        )
    fields = ("run_id", "created", "found_by", "status", "run_at", "pruned_at")
    settings.echo(
        _in_words(result, key, is_at=at is not None),
        **{name: getattr(result, name) for name in fields},
    )
    return 0


def _in_words(result: EnqueueResult, key: str | None, is_at: bool) -> str:
    if result.pruned_at is not None:
        return (
            f'nothing created: key "{key}" was used by run {result.run_id}, which was pruned on '
            f"{terminal.instant(result.pruned_at)}; use another key to do it again"
        )
    if not result.created:
        state = f" and is {result.status}" if result.status else ""
        return f"nothing created: {result.why}{state}"
    due = f", due {result.due}" if is_at else ""
    return f"run {result.run_id} created{due}{f'; {result.note}' if result.note else ''}"
