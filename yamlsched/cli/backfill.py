"""``yamlsched backfill``: make the runs of past slots, each under its own key."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

import click

from yamlsched.cli import _choice
from yamlsched.cli._acting import by_option
from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.sync.backfill import Backfilled

HELP = """Make the missing runs of JOB's slots in a range, oldest first, due at once.

Each run has the key of its slot: what exists is not doubled, and what was done and pruned is not done again. The
job's own progress is not touched. Both ends belong to the range; without --to it is the one date or slot of --from.
Dates and times without an offset are those of the job's own wall clock.
"""
SHOWN = 20


@click.command(cls=Verb, help=HELP)
@click.argument("job")
@click.option(
    "--from",
    "first",
    type=_choice.local,
    required=True,
    metavar="TIME",
    help="2026-01-14, 2026-01-14T02:00, or with an offset.",
)
@click.option("--to", "last", type=_choice.local, metavar="TIME", help="Likewise; a date means to its end.")
@click.option("--dry-run", is_flag=True, help="Say which runs would be made, and change nothing.")
@by_option
@_choice.namespace_option
@click.pass_obj
def command(
    settings: Settings,
    job: str,
    first: date | datetime,
    last: date | datetime | None,
    dry_run: bool,
    by: str | None,
    namespace: str | None,
) -> int:
    from yamlsched import wall
    from yamlsched.operations import actions, history
    from yamlsched.sync.backfill import CHUNK, backfill, definition_for
    from yamlsched.zones import zone

    def progress(done: int) -> None:
        if done % CHUNK == 0:
            click.echo(f"{done} slots ...", err=True)

    with settings.connect() as connection:
        namespace = history.namespace_of(connection, namespace, settings.file)
        definition = definition_for(connection, namespace, job)
        where = zone(definition.timezone)
        start, end = wall.span(first, where)
        if last is not None:
            end = wall.span(last, where)[1]
            if end < start:
                raise click.UsageError(f"--to {last.isoformat()} is before --from {first.isoformat()}")
        who = by or actions.operator()
        result = backfill(connection, namespace, definition, start, end, who, dry_run, progress)
    if settings.wants_json:
        click.echo(_json(job, result, dry_run))
    else:
        _print(result, dry_run)
    return 0


def _json(job: str, result: Backfilled, dry_run: bool) -> str:
    from yamlsched.cli import _output

    def slot(key: str, at: datetime) -> dict[str, object]:
        return {"key": key, "scheduled_for": at}

    def held(kept: list[tuple[str, datetime, object]]) -> list[dict[str, object]]:
        return [slot(key, at) | {"run_id": holder.run_id, "status": holder.status} for key, at, holder in kept]  # type: ignore[attr-defined]

    return _output.document(
        job_type=job,
        dry_run=dry_run,
        made=[slot(key, at) for key, at in result.made],
        existing=held(list(result.existing)),
        used=held(list(result.used)),
    )


def _print(result: Backfilled, dry_run: bool) -> None:
    from yamlsched.wall import utc

    for verb, found in (
        ("would make" if dry_run else "made", [f"{key} for {utc(at)}" for key, at in result.made]),
        ("exists", [f"{key}: run {holder.run_id}, {holder.status}" for key, _, holder in result.existing]),
        ("key used", [f"{key}: run {h.run_id}{_used(h.scheduled_for, at)}" for key, at, h in result.used]),
    ):
        for line in found[:SHOWN]:
            click.echo(f"{verb} {line}")
        if len(found) > SHOWN:
            click.echo(f"{verb} {len(found) - SHOWN} more")
    if not (result.made or result.existing or result.used):
        click.echo("no slots in this range")
    if result.future:
        click.echo("slots that have not come yet are left to sync", err=True)


def _used(of: datetime | None, slot: datetime) -> str:
    from yamlsched.wall import utc

    if of == slot:
        return ", pruned since"
    return f" of slot {utc(of)}" if of else " made by hand"
