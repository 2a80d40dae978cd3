"""``yamlsched diff``: what an edit of schedules.yaml will do, offline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.extras.preview import base as edit
from yamlsched.extras.preview import model, text
from yamlsched.schedule.checks import check_by_plugins
from yamlsched.schedule.formats import as_text
from yamlsched.show.html import FORMATS
from yamlsched.timetable.times import TimeInput

days_option = click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=7,
    help="Compare the slots of this many days.",
)


@verb(
    "Show offline what an edit of schedules.yaml changes. Compares the jobs, their fields and"
    " their next slots. BASE is a git revision, such as main or HEAD~1, or a file whose path"
    " starts with ./ or /.",
    uses="file env",
    formats=tuple(FORMATS),
)
@click.argument("base", metavar="BASE")
@click.argument("head", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@days_option
@click.option(
    "--at",
    type=_filters.time,
    metavar="TIME",
    help=(
        'The time of the edit (now): 17:30 or "mon 08:00" (the next one in the file\'s time zone),'
        " 2026-01-14T12:00, 2026-01-14T11:00Z, or 2h (from now)."
    ),
)
@click.option("--exit-code", "is_exit_code", is_flag=True, help="Exit 1 if there are differences.")
def command(
    settings: Settings,
    /,
    base: str,
    head: Path | None,
    days: int,
    at: TimeInput | None,
    is_exit_code: bool,
) -> int:
    file, environment = head or settings.file, settings.env or None
    if head is not None and not head.exists():
        raise click.UsageError(
            f"{head} is not a file: BASE is compared with a file. If it is a revision, check it"
            f" out, then: yamlsched diff {base}"
        )
    edited = edit.read(file, environment)
    if errors := edited.diagnostics if edited.has_errors else check_by_plugins(edited):
        click.echo(as_text(errors, []), err=True)
        return FINDINGS
    instant = edit.instant(at, edited, datetime.now(UTC))
    if at is not None:
        _filters.echo_reading("at", at, instant, edited.timezone)
    preview = edit.preview(base, file, edited, environment, instant, timedelta(days=days))
    settings.echo(FORMATS[settings.format](text.document(preview)), **model.document(preview))
    return FINDINGS if is_exit_code and preview.has_changes else OK
