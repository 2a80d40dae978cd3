"""``yamlsched why``: how a job is, or what became of a slot, and why."""

from __future__ import annotations

from itertools import groupby

import click

from yamlsched.act.backfill import definition_for
from yamlsched.ask.condition import JobCondition, condition
from yamlsched.ask.history import unknown_job
from yamlsched.ask.why import DayReport, SlotReport, explain, sentences
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.show import terminal
from yamlsched.sync import definitions
from yamlsched.timetable import times
from yamlsched.timetable.times import local_time, short_utc
from yamlsched.timetable.zones import zone

HELP = """Explain the state of JOB, or what happened at one of its slots (scheduled times).

Without --at, it shows the last success and failure, what the job waits for down to the root of the
chain, the next slot, and the command that helps. With --at, it shows the run of that slot, why it
was skipped, or what it waits for. If the time is not a slot, it shows which field of the cron
expression excludes it, and the nearest slots. A date means all of its slots. Dates and times
without an offset are in the job's time zone.
"""


@verb(HELP)
@click.argument("job", shell_complete=_filters.jobs)
@_filters.time_option(
    "--at",
    help=(
        "2026-01-14T02:00 (local), 2026-01-14T01:00Z, 2026-01-14 or yesterday (all of that day),"
        ' 20:48 or "mon 08:00" (local, the last one), 20:48Z, now, or 90m (90 minutes ago).'
    ),
)
def command(settings: Settings, job: str, at: times.TimeInput | None) -> int:
    with settings.connect_in() as (connection, namespace):
        if at is None:
            known = definitions.find(connection, namespace, job)
            if known is None:
                raise unknown_job(job, namespace, definitions.names(connection, namespace))
            found = condition(connection, namespace, known)
            settings.echo("\n".join(_job(found)), **vars(found))
            return 0
        definition = definition_for(connection, namespace, job)
        report = explain(connection, namespace, definition, at)
    if isinstance(report, DayReport):
        settings.echo("\n".join(_day(report)), **vars(report))
        return 0
    settings.echo("\n".join(_slot(report)), **vars(report))
    return 0


def _job(found: JobCondition) -> list[str]:
    lines = [f"{found.job_type}: {terminal.coloured(found.state, found.state.replace('_', ' '))}"]
    lines += [f"  {terminal.printable_line(line)}" for line in found.lines]
    return lines + [f"  what to do: {terminal.printable_line(remedy)}" for remedy in found.remedies]


def _slot(report: SlotReport) -> list[str]:
    return [_heading(report), *(f"  {line}" for line in sentences(report))]


def _heading(report: SlotReport) -> str:
    key = f", key {report.key}" if report.key else ""
    return f"{report.job_type} at {_time(report)}{key}"


def _time(report: SlotReport) -> str:
    return f"{short_utc(report.at)} ({report.local})"


def _day(day: DayReport) -> list[str]:
    lines = []
    for said, group in groupby(day.slots, key=lambda slot: slot.lines):
        first, *others = group
        span = f"{first.job_type} at {_time(first)}"
        several = others and f"{span} to {_time(others[-1])}: {len(others) + 1} slots"
        lines += [several or _heading(first), *(f"  {line}" for line in said)]
    if day.more:
        lines.append(f"and {day.more} more slots on {day.date}: pass a time to see one of them")
    if not lines:
        why = f": {day.off_week}" if day.off_week else ""
        lines.append(f"{day.job_type} has no slot on {day.date} in {day.timezone}{why}")
        for word, slot in (("slot before:", day.previous_slot), ("slot after: ", day.next_slot)):
            if slot:
                lines.append(f"  {word} {short_utc(slot)} ({local_time(slot, zone(day.timezone))})")
    return lines + ([day.job_is_off] if day.job_is_off else [])
