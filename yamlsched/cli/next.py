"""``yamlsched next``: the next slots of the file's jobs or of a cron expression. No database."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice

import click

from yamlsched.ask.forecast import MIN_PILE_UP_JOBS, Forecast, ForecastSpan, forecast
from yamlsched.cli import OK, _filters, _ics
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import CronError, Refused
from yamlsched.schedule import timezones
from yamlsched.schedule.load import Loaded, load_file
from yamlsched.show import terminal
from yamlsched.text import did_you_mean, join_first
from yamlsched.timetable import times
from yamlsched.timetable.cron import Cron, parse_cron, without_skipped
from yamlsched.timetable.keys import offset
from yamlsched.timetable.times import TimeInput, short_utc
from yamlsched.timetable.upcoming import ScheduledJob, Upcoming, merge, next_of_each
from yamlsched.timetable.words import in_words
from yamlsched.timetable.zones import zone

NAMELESS = "x"
"""The job's name in the keys of an expression without a job."""

DEFAULT_NUMBER = 10
MAX_NAMES = 8
"""Jobs that a message names."""
MAX_SHOWN_MINUTES = 10
"""How many of the fullest minutes are shown."""
MAX_SHOWN_NAMES = 6
"""Jobs that are named of each."""

HELP = """Show the next slot (scheduled time) of each job, or ten of JOB or of a cron expression.

Each slot has its key, and a note: a clock change that affects it, the jobs that it waits for.
--cron needs no file.
Slots are strictly after --from. --days shows a calendar: how many jobs start in each hour, and
when many start at once.
--format ics prints a calendar file, without the slots that a calendar skips: importing it again
updates its events.
"""


@verb(HELP, uses="file env namespace", formats=("text", "json", "ics"))
@click.argument("job", required=False, shell_complete=_filters.jobs)
@click.option(
    "--cron", "expression", metavar="EXPR", help="Use this expression instead of the file's jobs."
)
@click.option(
    "--timezone", metavar="TZ", help="The time zone of --cron (UTC), or of the calendar of --days."
)
@_filters.time_option(
    "--from",
    "start",
    help=(
        'Show slots after this time (now): 2026-11-01T04:00Z, 17:30 or "mon 08:00" (the next one),'
        " tomorrow, or 2h (from now)."
    ),
)
@click.option(
    "-n", "number", type=click.IntRange(1, 100_000), help="Number of slots, of all jobs together."
)
@click.option(
    "--days", type=click.IntRange(1, 366), help="Show all slots of this many days, as a calendar."
)
def command(
    settings: Settings,
    job: str | None,
    expression: str | None,
    timezone: str | None,
    start: TimeInput | None,
    number: int | None,
    days: int | None,
) -> int:
    if number and days:
        raise click.UsageError("-n and --days exclude each other: pass one of them")
    if timezone and not (expression or days):
        raise click.UsageError(
            "--timezone requires --cron or --days: a job's own time zone is set in the file"
        )
    code, file_zone, loaded = OK, _known_zone(timezone or "UTC"), None
    if expression is not None:
        jobs = [ScheduledJob(job or NAMELESS, _parse(expression), file_zone)]
    else:
        jobs, loaded = _jobs(settings, job)
        file_zone, code = loaded.timezone, int(loaded.has_errors)
    where = zone(timezone or file_zone)
    after = now = datetime.now(UTC)
    if start is not None:
        read_in = zone(jobs[0].timezone) if job and jobs and not timezone else where
        after = times.resolve(start, lambda: read_in, after, is_future=True)
    if settings.format == "ics":
        jobs = [
            job._replace(cron=without_skipped(job.cron, job.skip_on, job.only_on)) for job in jobs
        ]
    until = after + timedelta(days=days) if days else None
    if days:
        coming = merge(jobs, after, until)
    elif number or job or expression or settings.format == "ics":
        coming = islice(merge(jobs, after), number or DEFAULT_NUMBER)
    else:
        coming = next_of_each(jobs, after)
    if settings.wants_json:
        names = ("job_type", "scheduled_for", "local", "key", "note")
        slots = [
            {name: getattr(slot, name) for name in names} | {"local": slot.local.isoformat()}
            for slot in coming
        ]
        click.echo(terminal.document(slots=slots))
    elif settings.format == "ics":
        if not (upcoming := list(coming)):
            raise Refused("no slots: a calendar file needs at least one event")
        namespace = settings.namespace or (loaded and loaded.namespace) or "default"
        click.echo(_ics.calendar(upcoming, loaded.jobs if loaded else {}, namespace, now), nl=False)
    elif until:
        lines = _calendar(forecast(jobs, ForecastSpan(after, until, where.key)))
        click.echo(
            "\n".join([f"jobs that start in each hour, {where.key}", *lines])
            if lines
            else "no slots"
        )
    else:
        if len(jobs) == 1 and (words := in_words(jobs[0].cron, jobs[0].timezone)):
            click.echo(f"{words}\n")
        click.echo(_table(list(coming), with_jobs=job is None and expression is None))
    return code


def _parse(expression: str) -> Cron:
    try:
        return parse_cron(expression)
    except CronError as error:
        marker = " " * error.start + "^" * max(1, error.end - error.start)
        remedy = f"\n{error.remedy}" if error.remedy else ""
        raise Refused(f"{error.message}\n  {expression}\n  {marker}{remedy}") from error


def _known_zone(name: str) -> str:
    if name not in timezones.names():
        _, reason, remedy = timezones.explain(name)
        raise Refused(f"{reason}. {remedy}")
    return name


def _jobs(settings: Settings, name: str | None) -> tuple[list[ScheduledJob], Loaded]:
    """Return the jobs of the file that have slots, and all that the file has."""
    loaded = load_file(settings.file, settings.env, "; --cron works without it")
    if loaded.has_errors:
        where = f" --env {settings.env}" if settings.env else ""
        click.echo(f'{settings.file} has errors: "yamlsched validate{where}" shows them', err=True)
    if (
        name is not None
        and name not in loaded.jobs
        and (" " in name.strip() or name.startswith("@"))
    ):
        raise Refused(
            f'"{name}" is not the name of a job. For an expression: yamlsched next --cron'
            f" {shlex.quote(name)}"
        )
    if name is not None and name not in loaded.jobs:
        known = f"Its jobs: {join_first(list(loaded.jobs), MAX_NAMES)}." if loaded.jobs else ""
        hint = did_you_mean(name, loaded.jobs, known)
        raise Refused(f'no job "{name}" in {settings.file}, or it has errors. {hint}'.rstrip())
    jobs = []
    for job in loaded.jobs.values():
        if name not in (None, job.name):
            continue
        if job.cron is None:
            if name:
                click.echo(f'job "{name}" has no cron: it runs when it is enqueued', err=True)
        elif not job.enabled:
            where = f"in environment {settings.env}" if settings.env else "without an environment"
            click.echo(f'job "{job.name}" is disabled {where}: it has no slots', err=True)
        else:
            shift = offset(
                settings.namespace or loaded.namespace or "default", job.name, job.spread
            )
            after = job.after
            if job.after_enqueued:
                after = tuple(f"{name} and what it enqueues" for name in after)
            entry = ScheduledJob(
                job.name, job.cron, job.timezone, shift, None, after, job.skip_on, job.only_on
            )
            jobs.append(entry)
    for calendar in dict.fromkeys(
        calendar for job in jobs for calendar in (*job.skip_on, *job.only_on)
    ):
        if what := calendar.ends_soon(datetime.now(UTC)):
            click.echo(f"{what}: later dates are not in it", err=True)
    return jobs, loaded


def _table(slots: list[Upcoming], with_jobs: bool) -> str:
    if not slots:
        return "no slots"
    rows = [
        ([slot.job_type] if with_jobs else [])
        + [f"{slot.local:%a %Y-%m-%d %H:%M %Z}", short_utc(slot.scheduled_for), slot.key, slot.note]
        for slot in slots
    ]
    return terminal.table(
        (["JOB"] if with_jobs else []) + ["LOCAL", "UTC", "KEY", "NOTE"], rows, free_text="NOTE"
    )


def _calendar(forecast: Forecast) -> list[str]:
    """Return lines: how many jobs start in each local day and hour, and then the minutes in which
    most start at once.

    Those are the pile-ups, or the fullest minutes in which two or more jobs start. Days before the
    first start and after the last are left out.
    """
    days: dict[date, list[int]] = {}
    for hour, number in zip(forecast.hours, forecast.jobs_by_hour, strict=True):
        days.setdefault(hour.date, []).append(number)
    used = [day for day, jobs in days.items() if any(jobs)]
    if not used:
        return []
    headings = ["", *(f"{hour:02}" for hour in range(24))]
    rows = [
        [f"{day:%a %m-%d}", *(str(number or ".") for number in jobs)]
        for day, jobs in days.items()
        if used[0] <= day <= used[-1]
    ]
    return [terminal.table(headings, rows), *_fullest(forecast)]


def _fullest(forecast: Forecast) -> Iterator[str]:
    where, pile_ups = zone(forecast.span.timezone), forecast.pile_ups()
    fullest = forecast.fullest(MAX_SHOWN_MINUTES)
    if fullest:
        yield from ("", "most at once:")
    for clock, names, at in fullest:
        first = f"{at[0].astimezone(where):%a %m-%d}"
        often = f"on {first}" if len(at) == 1 else f"{len(at)} times from {first}"
        yield f"  {clock}  {len(names)} jobs, {often}: {join_first(names, MAX_SHOWN_NAMES)}"
    if pile_ups > MAX_SHOWN_MINUTES:
        yield f"  and {pile_ups - MAX_SHOWN_MINUTES} more with {MIN_PILE_UP_JOBS} jobs or more"
