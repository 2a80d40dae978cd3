"""``yamlsched report``: what happened in a span of time, over all jobs, on one screen."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click
from psycopg import Connection

from yamlsched.ask import report, report_document
from yamlsched.ask.report import MAX_LISTED, Report
from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._settings import FORMATS, Settings, verb
from yamlsched.db.query import now
from yamlsched.schedule.load import timezone_of_file
from yamlsched.timetable import times

EDIT_COLUMNS = (
    "id",
    "applied_at",
    "commit",
    "is_dirty",
    "author",
    "subject",
    "hash",
    "host",
    "path",
    "jobs",
)
HELP = """Show what happened since a time, over all jobs, worst first, with the commands that help.

What ran, failed by type of error, was skipped and why, started or finished late, took longest,
effects in doubt, and
edits. Exits 1 if something needs attention: a morning line for cron is "yamlsched report --since
12h". The HTML is one
file to mail.
"""


@verb(HELP, formats=FORMATS)
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
    settings.echo(report_document.document(summary), **document(summary))
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
    groups = report.failures.worst_first()
    next_slot = (
        dict(zip(("job_type", "timezone", "at"), report.next_slot, strict=True))
        if report.next_slot
        else None
    )
    return {
        **{name: getattr(report, name) for name in ("namespace", "now", "since", "until")},
        "timezone": report.timezone,
        "healthy": not report.problems,
        **{name: getattr(report, name) for name in ("problems", "jobs", "ran", "queue")},
        "held_up": [held_up._asdict() for held_up in report.held_up],
        "failures": groups[:MAX_LISTED],
        "more_failures": len(groups[MAX_LISTED:]),
        "failures_are_complete": report.failures.is_complete,
        "dead_by_error_type": report.dead,
        "skipped": report.skipped,
        "started_late": [job for job in report.late if job.kind == "started"],
        "finished_late": [job for job in report.late if job.kind == "finished"],
        **{name: getattr(report, name) for name in ("in_doubt", "longest", "largest")},
        "edits": [{name: getattr(edit, name) for name in EDIT_COLUMNS} for edit in report.edits],
        "next_slot": next_slot,
    }
