"""``yamlsched runs``: history, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from psycopg import Connection

from yamlsched import durations
from yamlsched.ask import failures, search
from yamlsched.ask.history import definitions
from yamlsched.ask.runs import RunRow, took
from yamlsched.ask.search import Filter
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.runs.lifecycle import error_text
from yamlsched.show import terminal as _output
from yamlsched.show.document import Document, as_text

HEADINGS = ("ID", "JOB", "STATUS", "ATTEMPT", "WHEN", "TOOK", "KEY", "NOTE")


@verb("List runs, newest first.")
@_filters.filter_options
@click.option("--key", metavar="KEY", help="Runs with this key; * matches any string.")
@click.option(
    "--worker", metavar="HOST[:PID]", help="Runs that this worker holds, or was the last to hold."
)
@_filters.page_options(50)
@click.option(
    "--group-by",
    type=click.Choice(["error_type"]),
    metavar="error_type",
    help=(
        "Count runs with failed attempts by job and type of error, worst first. Of one job, at most"
        " 1000 are read."
    ),
)
def command(
    settings: Settings, /, limit: int, before: int | None, group_by: str | None, **options: Any
) -> int:
    if group_by:
        _refuse_for_groups(options, before)
    with settings.connect_in() as (connection, namespace):
        filter = _filters.build_filter(connection, namespace, settings.file, **options)
        if group_by:
            return _show_groups(settings, connection, namespace, filter, limit)
        listing = search.page(
            connection, namespace, filter, limit, before=before, max_ids=search.MAX_LISTED_IDS
        )
    page, stopped_at = listing.runs, listing.searched_to
    if settings.wants_json:
        click.echo(_output.document(namespace=namespace, runs=page, next_before=listing.older))
    elif not page:
        where = "" if stopped_at is None else f" down to run {stopped_at}, where the search stopped"
        click.echo(f"no {'' if before is None else 'older '}runs match{where}", err=True)
    else:
        click.echo(_output.table(HEADINGS, map(line, page), free_text="NOTE"))
    if listing.older is not None and not settings.wants_json:
        what = "more" if stopped_at is None else "to search older runs"
        click.echo(f"{what}: pass --before {listing.older}", err=True)
    return 0


def _refuse_for_groups(options: dict[str, Any], before: int | None) -> None:
    """Raise UsageError for options that groups cannot have."""
    names = [f"--{name}" for name in ("key", "worker", "error") if options[name]] + ["--before"] * (
        before is not None
    )
    if names:
        raise click.UsageError(
            f"--group-by error_type cannot be combined with {', '.join(names)}: remove one of them"
        )


def _show_groups(
    settings: Settings, connection: Connection[Any], namespace: str, filter: Filter, limit: int
) -> int:
    jobs = definitions(connection, namespace, filter.jobs, filter.tags)
    only_dead = set(filter.statuses) == {"dead"}
    failed = failures.groups(
        connection, namespace, filter.since, filter.until, jobs, only_dead=only_dead
    )
    groups = [
        group
        for group in failed.groups
        if filter.error_type in (None, group.error_type)
        and (
            not filter.statuses
            or group.dead * ("dead" in filter.statuses)
            or group.failing * ("failed" in filter.statuses)
        )
    ]
    page, more = groups[:limit], len(groups[limit:])
    if settings.wants_json:
        click.echo(
            _output.document(
                namespace=namespace, groups=page, more_groups=more, is_complete=failed.is_complete
            )
        )
    elif not groups:
        click.echo("no failed attempts match", err=True)
    else:
        click.echo(as_text(Document("", [failures.section(failed, page, _time)])))
    if more and not settings.wants_json:
        click.echo(
            f"and {_output.count(more, 'more group')}: pass --limit {limit + more}", err=True
        )
    return 0


def _time(at: datetime, timezone: str) -> str:
    return _output.instant(at)


def line(row: RunRow) -> tuple[str, ...]:
    """Return the cells of ``row``."""
    return (
        str(row.id),
        f"{row.job_type} ({row.hook}: {row.parent_id})" if row.hook else row.job_type,
        _output.coloured(row.status),
        f"{row.attempts}/{row.max_attempts}",
        _output.instant(row.finished_at or row.started_at or row.run_at),
        duration(row),
        row.key or "-",
        note(row),
    )


def note(row: RunRow) -> str:
    """Return why the run is in its state, or how far it has come."""
    if row.has_error:
        return error_text(row.error_type, row.last_error)
    return row.waits or (str(row.progress) if row.progress else "")


def duration(row: RunRow) -> str:
    """Return how long the latest attempt took; "-" if that is unknown."""
    time = took(row)
    return "-" if time is None else durations.show(time)
