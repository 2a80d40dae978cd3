"""Options that several verbs share: which runs, which namespace, and how times are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from psycopg import Connection

from yamlsched import durations
from yamlsched.ask.history import timezone_of
from yamlsched.ask.search import Filter
from yamlsched.cli._settings import Settings
from yamlsched.db.query import now
from yamlsched.errors import YamlschedError
from yamlsched.runs.lifecycle import Status
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import load_file
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone


def jobs(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the file's jobs that start with ``incomplete``."""
    return sorted(name for name in _jobs(context) if name.startswith(incomplete))


def tags(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the tags of the file's jobs that start with ``incomplete``."""
    tags = {tag for job in _jobs(context).values() for tag in job.tags}
    return sorted(tag for tag in tags if tag.startswith(incomplete))


def _jobs(context: click.Context) -> dict[str, Job]:
    """Return the valid jobs of the file; none if it cannot be read: a shell has no place for an
    error.
    """
    file = context.params.get("file") or context.find_root().params.get("file")
    try:
        return load_file(Path(file or Settings.file), None).jobs
    except YamlschedError:
        return {}


Value = TypeVar("Value")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _option_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return ``parse`` as the type of an option: its ValueError becomes a usage error."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


time = _option_type(times.parse)
"""A time in any form that ``times.parse`` accepts. What has no offset is read in a time zone that
is known later.
"""
duration = _option_type(durations.parse)
"""A duration such as 15m."""
time_option = partial(click.option, type=time, metavar="TIME")
duration_option = partial(click.option, type=duration, metavar="DURATION")


def combine(*options: Option) -> Option:
    """Return one decorator that adds all ``options``, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


path_option = click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="DIR",
    help="Also look for handlers in this folder; may be repeated.",
)
by_option = click.option(
    "--by", metavar="WHO", help="Your name, recorded with the action (your user on this host)."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

filter_options = combine(
    click.option(
        "--job",
        "jobs",
        multiple=True,
        metavar="JOB",
        shell_complete=jobs,
        help="Runs of this job; may be repeated.",
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="TAG",
        shell_complete=tags,
        help="Runs of jobs with this tag. Repeat it for jobs that have several tags.",
    ),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([str(s) for s in Status]),
        metavar="STATUS",
        help=f"Runs in this state: {', '.join(Status)}; may be repeated.",
    ),
    time_option(
        "--since",
        help=(
            "Runs that ended (else started, else are due) at or after this time: 2026-01-14T02:00Z,"
            ' 17:30 or "mon 08:00" (the last one), or 90m (the last 90 minutes).'
        ),
    ),
    time_option("--until", help="Runs before this time; the same forms."),
    click.option(
        "--error",
        metavar="TEXT",
        help="Runs whose latest error contains this, in its type or message.",
    ),
    click.option("--error-type", metavar="TYPE", help="Runs whose latest error is of this type."),
)
"""The options that ``build_filter`` gets."""


def page_options(default: int) -> Option:
    """Return the options of a verb that lists the newest first, in pages."""
    return combine(
        click.option(
            "--limit",
            type=click.IntRange(1, 10_000),
            default=default,
            help="List at most this many.",
        ),
        click.option(
            "--before",
            type=click.IntRange(1, 2**63 - 1),
            metavar="ID",
            help="The next page: the entries before this id.",
        ),
    )


def build_filter(connection: Connection[Any], namespace: str, file: Path, **options: Any) -> Filter:
    """Return the filter that ``options`` describe; print how times without an offset were read."""
    for option in ("since", "until"):
        options[option] = resolve_time(
            connection, namespace, file, option, options[option], options["jobs"]
        )
    return Filter(**options)


def resolve_time(
    connection: Connection[Any],
    namespace: str,
    file: Path,
    option: str,
    value: times.TimeInput | None,
    jobs: Sequence[str] = (),
) -> datetime | None:
    """Return the instant of an option about the past; print how a time without an
    offset was read.
    """
    if value is None:
        return None
    timezone = timezone_of(connection, namespace, jobs, file)
    at = times.resolve(value, lambda: zone(timezone), now(connection), is_future=False)
    echo_reading(option, value, at, timezone)
    return at


def echo_reading(option: str, value: times.TimeInput, at: datetime, timezone: str) -> None:
    """Print how a local time was read, so that a mistake is seen."""
    if times.is_local(value):
        read = times.show(at, zone(timezone))
        click.echo(f"--{option} is read in {timezone}: {read}", err=True)
