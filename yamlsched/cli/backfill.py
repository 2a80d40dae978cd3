"""``yamlsched backfill``: create the runs of past slots, each under its own key."""

from __future__ import annotations

from datetime import datetime

import click

from yamlsched.act import backfill as actions
from yamlsched.act import runs
from yamlsched.act.backfill import (
    CHUNK_SLOTS,
    BackfillResult,
    BackfillSlot,
    backfill,
    definition_for,
    read_range,
    select,
)
from yamlsched.cli import FINDINGS, _filters
from yamlsched.cli._bulk import confirm
from yamlsched.cli._settings import Settings, verb
from yamlsched.db.query import now
from yamlsched.errors import Refused
from yamlsched.show import terminal
from yamlsched.sync.slot_plan import KeyHolder
from yamlsched.timetable.times import TimeInput, rfc3339, short_utc
from yamlsched.timetable.zones import zone

HELP = """Create the missing runs of JOB's past slots (scheduled times).

The runs are created oldest first and are due immediately. Each has the key of its slot: existing
and pruned runs are
not created again. It does not change when the job runs next. Both ends are inclusive; without --to,
the range is the date
or slot of --from. Dates and times without an offset are in the job's time zone.

Slots before the day on which the job was first applied are skipped unless --before-first is
passed. More than 100
slots require confirmation; more than 10,000 require --yes. To resume an interrupted backfill, run
the same command
again.
"""
OUTCOMES = {
    "made": "created",
    "existing": "exists",
    "used": "key used",
    "left_out": "left out",
}
"""The lists of the result, and what is said of the slots in them."""
MAX_LISTED = 20
MAX_SLOTS_UNCONFIRMED = 100
"""More slots need a confirmation."""
MAX_SLOTS_WITHOUT_YES = 10_000
"""More slots are refused, also in a dry run: a wrong date is more likely."""


@verb(HELP)
@click.argument("job", shell_complete=_filters.jobs)
@_filters.time_option(
    "--from",
    "first",
    required=True,
    help=(
        "2026-01-14 or yesterday (all of that day), 2026-01-14T02:00, 2026-01-14T01:00Z, 17:30 or"
        ' "mon 08:00" (the last one), or 3d (ago).'
    ),
)
@_filters.time_option(
    "--to",
    "last",
    help="The same; a date includes the whole day.",
)
@click.option(
    "--before-first", is_flag=True, help="Include slots from before the job was first applied."
)
@click.option(
    "--downstream", is_flag=True, help="Also create the missing runs of the jobs that follow JOB."
)
@click.option(
    "--dry-run", is_flag=True, help="Show which runs would be created, and change nothing."
)
@_filters.by_option
@_filters.yes_option
def command(
    settings: Settings,
    job: str,
    first: TimeInput,
    last: TimeInput | None,
    before_first: bool,
    downstream: bool,
    dry_run: bool,
    by: str | None,
    yes: bool,
) -> int:
    result = BackfillResult()

    def progress(done: int) -> None:
        if done % CHUNK_SLOTS == 0:
            click.echo(f"{done} slots ...", err=True)

    with settings.connect_in() as (connection, namespace):
        definition = definition_for(connection, namespace, job, is_range=last is not None)
        began = now(connection)
        start, end = read_range(first, last, zone(definition.timezone), began)
        _filters.echo_reading("from", first, start, definition.timezone)
        if last is not None:
            _filters.echo_reading("to", last, end, definition.timezone)
        if end < start:
            raise click.UsageError(
                f"--to {rfc3339(end, 'seconds')} is before --from {rfc3339(start, 'seconds')}"
            )
        chosen = select(connection, definition, start, end, before_first)
        if chosen.left_out_before:
            click.echo(
                f"slots before {chosen.left_out_before}, when the job was first applied, are"
                " skipped: pass --before-first to include them",
                err=True,
            )
        if chosen.skipped:
            slots = "1 slot is" if chosen.skipped == 1 else f"{chosen.skipped} slots are"
            click.echo(
                f"{slots} left out by calendars. To run one, pass its date without --to",
                err=True,
            )
        ranges = [chosen]
        if downstream:
            ranges += actions.downstream(connection, namespace, *chosen[:3])
        total = sum(job_range.slots for job_range in ranges)
        if total > MAX_SLOTS_WITHOUT_YES and not yes:
            raise Refused(
                f"these are {total:,} slots, more than {MAX_SLOTS_WITHOUT_YES:,}: choose a smaller"
                " range, or pass --yes"
            )
        if total > MAX_SLOTS_UNCONFIRMED and not dry_run:
            confirm(
                f"create up to {total} runs of"
                f" {', '.join(job_range.job.job_type for job_range in ranges)}",
                yes,
            )
        who = by or runs.operator()
        try:
            for job_range in ranges:
                is_follower = job_range is not ranges[0]
                backfill(
                    connection,
                    namespace,
                    *job_range[:3],
                    who,
                    dry_run,
                    progress,
                    result=result,
                    is_downstream=is_follower,
                )
        except KeyboardInterrupt:
            if not dry_run:
                click.echo(
                    f"interrupted: at least {len(result.made)} of up to {total} runs created."
                    " To resume, run the same command again",
                    err=True,
                )
            return FINDINGS
    if settings.wants_json:
        lists = {name: getattr(result, name) for name in OUTCOMES}
        click.echo(terminal.document(job_type=job, dry_run=dry_run, **lists))
    else:
        _print(result, dry_run, ahead=max(start, began) if result.future else None)
    return 0


def _print(result: BackfillResult, dry_run: bool, ahead: datetime | None) -> None:
    """Print the slots; ``ahead`` is where those that sync creates start, None if the range has none
    of them.
    """
    for name, what in OUTCOMES.items():
        slots = getattr(result, name)
        if dry_run and name == "made":
            what = "would create"
        for slot in slots[:MAX_LISTED]:
            click.echo(f"{what} {_line(slot)}")
        if len(slots) > MAX_LISTED:
            click.echo(f"{what} {len(slots) - MAX_LISTED} more")
    if ahead is not None:
        click.echo(
            f"slots after {short_utc(ahead)} are in the future: sync creates those runs", err=True
        )
    elif not result.done:
        click.echo("no slots in this range")


def _line(slot: BackfillSlot) -> str:
    if slot.upstream:
        return f"{slot.key}: {slot.upstream} has no run for it to wait for"
    if slot.holder is not None:
        return f"{slot.key}: {_holder(slot, slot.holder)}"
    return f"{slot.key} for {short_utc(slot.scheduled_for)}"


def _holder(slot: BackfillSlot, holder: KeyHolder) -> str:
    """Return the run that has the slot's key, and its status or where it is from."""
    if holder.scheduled_for == slot.scheduled_for:
        return f"run {holder.run_id}, {holder.status or 'pruned since'}"
    origin = (
        f"of slot {short_utc(holder.scheduled_for)}" if holder.scheduled_for else "created by hand"
    )
    return f"run {holder.run_id} {origin}"
