"""Options by which runs are chosen, shared by the verbs that show and change runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import click

from yamlsched import durations, times
from yamlsched.runs import Status

if TYPE_CHECKING:
    from yamlsched.operations.history import Filter


def time_or_duration(text: str) -> datetime | timedelta:
    """Read an option: a time in RFC 3339, or a duration back from now or ahead of it."""
    try:
        return times.parse_instant(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def local_time(text: str) -> date | datetime:
    """Read an option: a date, a time on a wall clock that is known later, or an instant."""
    from yamlsched import times

    try:
        return times.parse_local(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def time_of_day(text: str) -> time | None:
    """Return the time of day that an option writes as 17:30; None for anything else."""
    try:
        return time.fromisoformat(text) if re.fullmatch(r"\d\d:\d\d", text) else None
    except ValueError:
        raise click.BadParameter(f'"{text}" is not a valid time of day: write 00:00 to 23:59') from None


def duration(text: str) -> timedelta:
    """Read an option: a duration such as 15m."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


namespace_option = click.option(
    "--namespace", metavar="NAME", help="The namespace (the file's; without a file, the only one in the database)."
)

FILTER_OPTIONS = [
    click.option("--job", "jobs", multiple=True, metavar="JOB", help="Runs of this job; may be repeated."),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Runs of jobs with this tag; repeated: with all of them."
    ),
    click.option(
        "--status", "statuses", multiple=True, type=click.Choice([str(s) for s in Status]), help="May be repeated."
    ),
    click.option(
        "--since",
        type=time_or_duration,
        metavar="TIME",
        help="Runs that ended (else started, else are due) at or after this time: 2026-01-14T02:00Z, or 90m for "
        "the last 90 minutes.",
    ),
    click.option("--until", type=time_or_duration, metavar="TIME", help="And before this time."),
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
