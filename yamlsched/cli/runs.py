"""``yamlsched runs``: history, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli import _filters, _output
from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.store.history import RunRow, StoredRun

COLUMNS = (
    *("id", "job_type", "key", "status", "attempts", "max_attempts"),
    *("scheduled_for", "run_at", "started_at", "finished_at", "created_at", "worker", "last_error"),
)


@click.command(
    cls=Verb,
    formats=("text", "json", "csv"),
    help="List runs, newest first.",
)
@_filters.filter_options
@click.option("--key", metavar="KEY", help="Runs with this key; * matches any string.")
@click.option("--worker", metavar="HOST[:PID]", help="Runs that this worker holds, or was the last to hold.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Runs per page.")
@click.option(
    "--before", type=click.IntRange(1, 2**63 - 1), metavar="ID", help="The next page: runs older than this id."
)
@click.pass_obj
def command(settings: Settings, /, namespace: str | None, limit: int, before: int | None, **given: Any) -> int:
    from yamlsched.operations import history
    from yamlsched.store.history import now

    with settings.connect() as connection:
        instant = now(connection)
        namespace = history.namespace_of(connection, namespace, settings.file)
        # one more than asked for tells whether there is another page
        rows = history.runs(connection, namespace, _filters.build_filter(instant, **given), limit + 1, before)
    page, more = rows[:limit], len(rows) > limit
    if settings.wants_json:
        click.echo(_output.document(namespace=namespace, runs=page, next_before=page[-1].id if more else None))
    elif settings.format == "csv":
        click.echo(_output.comma_separated(COLUMNS, [[getattr(row, name) for name in COLUMNS] for row in page]))
    elif not page:
        click.echo("no runs" if before is None else "no older runs", err=True)
    else:
        click.echo(_output.table(("ID", "JOB", "STATUS", "ATTEMPT", "WHEN", "TOOK", "KEY", "ERROR"), map(line, page)))
    if more and settings.format == "text":
        click.echo(f"more: pass --before {page[-1].id}", err=True)
    return 0


def line(row: RunRow) -> tuple[str, ...]:
    """Return the cells of ``row``."""
    return (
        str(row.id),
        row.job_type if row.dead_run_id is None else f"{row.job_type} (on_dead)",
        _output.coloured(row.status),
        f"{row.attempts}/{row.max_attempts}",
        _output.instant(row.finished_at or row.started_at or row.run_at),
        took(row),
        row.key or "-",
        (row.last_error or "") if row.status in ("dead", "failed") else "",
    )


def took(run: RunRow | StoredRun) -> str:
    """Return how long the latest attempt took, as far as it ended."""
    return "-" if run.cancelled_at_rest else between(run.started_at, run.finished_at)


def between(started: datetime | None, finished: datetime | None) -> str:
    from yamlsched import durations

    return durations.show(max(finished - started, finished - finished)) if started and finished else "-"
