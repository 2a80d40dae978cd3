"""``yamlsched report``: what happened in a span of time, over all jobs, on one screen."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click
from psycopg import Connection

from yamlsched.ask import report, report_document
from yamlsched.ask.report import Report
from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.db.query import now
from yamlsched.schedule.load import timezone_of_file
from yamlsched.show.html import FORMATS
from yamlsched.timetable import times

HELP = """Show what happened since a time, over all jobs, worst first, with the commands that help.

It lists the runs by result, the failures by type of error, the skipped slots (scheduled times) and
why, the late jobs, the longest runs, the effects in doubt, and the edits. Exits 1 if something
needs your attention. For a morning mail from cron: "yamlsched report --since 12h". --format html
prints one file that you can mail.
"""


@verb(HELP, formats=tuple(FORMATS))
@_filters.time_option(
    "--since",
    default="12h",
    help=(
        'The start: 12h (the last 12 hours), 18:00, yesterday, "fri 18:00" (the last one), or'
        " 2026-01-14T02:00Z."
    ),
)
@_filters.time_option("--until", help="The end (now); the same forms.")
def command(settings: Settings, /, since: times.TimeInput, until: times.TimeInput | None) -> int:
    timezone = timezone_of_file(settings.file)
    with settings.connect_in() as (connection, namespace):
        start, end = _span(connection, settings.file, since, until, now(connection))
        summary = report.read(connection, namespace, start, end, timezone)
    text = FORMATS[settings.format](report_document.document(summary))
    settings.echo(text, **document(summary))
    return FINDINGS if summary.problems else OK


def _span(
    connection: Connection[Any],
    file: Path,
    since: times.TimeInput,
    until: times.TimeInput | None,
    at: datetime,
) -> tuple[datetime, datetime | None]:
    """Return the instants. An end that is not in the past is None: now."""
    start, end = (
        _filters.resolve_time(connection, "", file, option, value)
        for option, value in (("since", since), ("until", until))
    )
    assert start is not None
    if start >= at:
        raise click.UsageError(
            f"--since {times.short_utc(start)} is not in the past: it is {times.short_utc(at)}"
        )
    if end is not None and end <= start:
        raise click.UsageError(
            f"--until {times.short_utc(end)} is not after --since {times.short_utc(start)}"
        )
    return start, None if end is None or end >= at else end


def document(report: Report) -> dict[str, Any]:
    """Return the parts of the JSON document."""
    return {"healthy": not report.problems, **vars(report)}
