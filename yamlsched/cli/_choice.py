"""Options by which runs are chosen, shared by the verbs that show and change runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from yamlsched.operations import instants
from yamlsched.runs import Status

if TYPE_CHECKING:
    from yamlsched.operations.history import Filter


class Instant(click.ParamType):
    """A time in RFC 3339, or a duration back from now or ahead of it."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, datetime | timedelta):
            return value
        try:
            return instants.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Duration(click.ParamType):
    """A duration such as 15m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from yamlsched import durations

        if isinstance(value, timedelta):
            return value
        try:
            return durations.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


namespace_option = click.option(
    "--namespace", metavar="NAME", help="The namespace (that of the file; without a file, the only one there is)."
)

FILTERS = [
    click.option("--job", "jobs", multiple=True, metavar="JOB", help="Runs of this job; may be repeated."),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Runs of jobs with this tag; with all of several."
    ),
    click.option(
        "--status", "statuses", multiple=True, type=click.Choice([str(s) for s in Status]), help="May be repeated."
    ),
    click.option(
        "--since",
        type=Instant(),
        help="Runs that ended, else began, else are due since then: 2026-01-14T02:00Z, or 90m for the last 90 minutes.",
    ),
    click.option("--until", type=Instant(), help="And before then."),
    namespace_option,
]


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``FILTERS``."""
    for option in reversed(FILTERS):
        function = option(function)
    return function


def chosen(now: datetime, **given: Any) -> Filter:
    """Return the filter that the options ``given`` write."""
    from yamlsched.operations.history import Filter

    since, until = instants.before(given.pop("since"), now), instants.before(given.pop("until"), now)
    return Filter(since=since, until=until, **given)
