"""``yamlsched diff``: what an edit of schedules.yaml will do, offline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from yamlsched.cli import FINDINGS, OK, _filters, _preview
from yamlsched.cli._settings import Settings, Verb
from yamlsched.times import TimeInput

MISSING_FILE = "; name the schedule with --file or YAMLSCHED_FILE"


@click.command(
    cls=Verb,
    uses="file env",
    formats=_preview.FORMATS,
    help="Show offline what an edit of schedules.yaml changes. Compares the jobs, their fields and their next slots. "
    "BASE is a git revision, such as main or HEAD~1, or a file.",
)
@click.argument("base", metavar="BASE")
@click.argument("head", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@_preview.days_option
@click.option(
    "--at",
    type=_filters.time,
    metavar="TIME",
    help="The time of the edit (now): 2026-01-14T12:00 in the file's time zone, or 2026-01-14T11:00Z.",
)
@click.option("--exit-code", "is_exit_code", is_flag=True, help="Exit 1 if there are differences.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    base: str,
    head: Path | None,
    days: int,
    at: TimeInput | None,
    is_exit_code: bool,
) -> int:
    from yamlsched import times
    from yamlsched.definitions import schedule_file
    from yamlsched.definitions.formats import as_text
    from yamlsched.definitions.git import read_base
    from yamlsched.definitions.load import load
    from yamlsched.preview.diff import base_side, compare, file_side
    from yamlsched.zones import zone

    file, environment = head or settings.file, settings.env or None
    loaded = load(schedule_file.read(file, MISSING_FILE), str(file), environment)
    if loaded.has_errors:
        click.echo(as_text(loaded.diagnostics, []), err=True)
        return FINDINGS
    name, data = read_base(base, file)
    after = file_side(str(file), loaded, environment)
    before = base_side(name, None if data is None else load(data, name, environment), environment, after)
    instant = datetime.now(UTC)
    if at is not None:
        instant = times.resolve(at, lambda: zone(loaded.timezone), instant, is_future=True)
    preview = compare(before, after, instant, instant + timedelta(days=days), environment)
    _preview.echo(preview, settings.format)
    return FINDINGS if is_exit_code and preview.has_changes else OK
