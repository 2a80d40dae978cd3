"""``yamlsched diff``: what an edit of schedules.yaml will do, offline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from yamlsched.cli import FINDINGS, OK, _filters, _output, _preview
from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.definitions.load import Loaded

FORMATS = ("text", "json", "markdown")


@click.command(
    cls=Verb,
    offline=True,
    formats=FORMATS,
    help="Show what an edit of FILE (schedules.yaml) changes: jobs, fields and slots of the next days. BASE is "
    "a git revision, such as main or HEAD~1, or a file. Needs no database.",
)
@click.argument("base", metavar="BASE")
@click.argument("head", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option(
    "--days", type=click.IntRange(1, 366), default=7, show_default=True, help="Compare the slots of this many days."
)
@click.option(
    "--at", type=_filters.time_or_duration, metavar="TIME", help="The time of the edit: 2026-01-14T12:00Z (now)."
)
@click.option("--exit-code", "is_exit_code", is_flag=True, help="Exit 1 if there are differences.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    base: str,
    head: Path | None,
    days: int,
    at: datetime | timedelta | None,
    is_exit_code: bool,
) -> int:
    from yamlsched import times
    from yamlsched.definitions.load import load
    from yamlsched.preview import document, markdown, text
    from yamlsched.preview.compare import compare
    from yamlsched.preview.values import base_side, empty_side, side

    file, environment = head or settings.file, settings.env or None
    after = load(read(file), str(file), environment)
    if after.has_errors:
        return refuse(after)
    name, data = read_base(base, file)
    new = side(str(file), after, environment)
    old = empty_side(name, new) if data is None else base_side(name, load(data, name, environment), environment, new)
    now = datetime.now(UTC)
    instant = times.after(at, now) or now
    preview = compare(old, new, instant, instant + timedelta(days=days), environment)
    if settings.format == "json":
        click.echo(_output.document(**document.parts(preview)))
    elif settings.format == "markdown":
        click.echo(markdown.render(preview))
    else:
        click.echo(_preview.shown(text.render(preview)))
    return FINDINGS if is_exit_code and preview.has_changes else OK


def read(file: Path) -> bytes:
    from yamlsched.definitions import schedule_file

    return schedule_file.read(file, "; name the schedule with --file or YAMLSCHED_FILE")


def read_base(base: str, file: Path) -> tuple[str, bytes | None]:
    """Return name and content of the base: a file if there is one of that name, else a revision.

    The content is None if the revision does not have the file.
    """
    from yamlsched.preview import revision

    if Path(base).is_file():
        return base, read(Path(base))
    return base if ":" in base else f"{base}:{file.name}", revision.read(base, file)


def refuse(loaded: Loaded) -> int:
    """Show the errors of a file; 1."""
    from yamlsched.definitions.formats import as_text

    click.echo(as_text(loaded.diagnostics, []), err=True)
    return FINDINGS
