"""Options that several verbs share: which runs, which namespace, and how times are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from yamlsched import durations, times
from yamlsched.runs import Status

if TYPE_CHECKING:
    from yamlsched.operations.history import Filter

Value = TypeVar("Value")


def _option_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return ``parse`` as the type of an option: its ValueError becomes a usage error."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


time_or_duration = _option_type(times.parse_instant)
"""A time in RFC 3339, or a duration before or after now."""
local_time = _option_type(times.parse_local)
"""A date or time on a wall clock that is known later, or an instant."""
duration = _option_type(durations.parse)
"""A duration such as 15m."""


def time_of_day(text: str) -> time | None:
    """Return the time of day that ``text`` writes as 17:30; None for anything else."""
    try:
        return time.fromisoformat(text) if re.fullmatch(r"\d\d:\d\d", text) else None
    except ValueError:
        raise click.BadParameter(f'"{text}" is not a valid time of day: write 00:00 to 23:59') from None


namespace_option = click.option(
    "--namespace", metavar="NAME", help="The namespace (the file's; without a file, the only one in the database)."
)
path_option = click.option(
    "--path", "paths", multiple=True, metavar="DIR", help="Also look for handlers in this folder; may be repeated."
)
by_option = click.option("--by", metavar="WHO", help="Who does this; recorded with the action (the user on this host).")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

FILTER_OPTIONS = [
    click.option("--job", "jobs", multiple=True, metavar="JOB", help="Runs of this job; may be repeated."),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Runs of jobs with this tag; if repeated, with all of them."
    ),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([str(s) for s in Status]),
        metavar="STATUS",
        help=f"Runs in this state: {', '.join(Status)}; may be repeated.",
    ),
    click.option(
        "--since",
        type=time_or_duration,
        metavar="TIME",
        help="Runs that ended (else started, else are due) at or after this time: 2026-01-14T02:00Z, or 90m for "
        "the last 90 minutes.",
    ),
    click.option("--until", type=time_or_duration, metavar="TIME", help="Runs before this time."),
    namespace_option,
]


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``FILTER_OPTIONS``."""
    for option in reversed(FILTER_OPTIONS):
        function = option(function)
    return function


def build_filter(now: datetime, **given: Any) -> Filter:
    """Return the filter that the options ``given`` write."""
    from yamlsched.operations.history import Filter

    since, until = times.before(given.pop("since"), now), times.before(given.pop("until"), now)
    return Filter(since=since, until=until, **given)
