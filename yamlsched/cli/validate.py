"""``yamlsched validate``: every check of schedules.yaml that needs no database."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.definitions.diagnostic import Diagnostic


@click.command(
    cls=Verb,
    uses="file env",
    formats=("text", "concise", "json", "github", "sarif"),
    help="Check schedules.yaml, and report every error with its position and a fix. Needs no database and imports no "
    "handler. Exit 1 if there are errors, 3 if a file cannot be read.",
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--import", "imports", is_flag=True, help="Import the handlers, which executes their modules.")
@click.option(
    "--path", "paths", multiple=True, type=click.Path(path_type=Path), help="Also look for handlers in this folder."
)
@click.option("--require-owner", is_flag=True, help="Warn about jobs without an owner.")
@click.option("--no-handlers", is_flag=True, help="Do not check handlers, for a file whose code is elsewhere.")
@click.pass_obj
def command(
    settings: Settings,
    files: tuple[Path, ...],
    strict: bool,
    imports: bool,
    paths: tuple[Path, ...],
    require_owner: bool,
    no_handlers: bool,
) -> int:
    from yamlsched.cli import _output
    from yamlsched.definitions.formats import FORMATS, as_text
    from yamlsched.terminal import escape_line

    files = files or (settings.file,)
    now = datetime.now(UTC)
    found: list[Diagnostic] = []
    summaries = []
    for file in files:
        of_file, jobs = _check(file, settings.env, now, paths, imports, require_owner, not no_handlers)
        if strict:
            of_file = [replace(one, severity="error") for one in of_file]
        found += of_file
        summaries.append(_summary(file, jobs, of_file))
    write = partial(as_text, paint=_paint) if settings.format == "text" and _output.has_colours() else None
    if text := (write or FORMATS[settings.format])(found, [str(file) for file in files]):
        click.echo(text)
    if settings.format == "text":
        if text:
            click.echo()
        for summary in summaries:
            click.echo(escape_line(summary))
    return int(any(one.severity == "error" for one in found))


def _check(
    file: Path,
    environment: str | None,
    now: datetime,
    paths: tuple[Path, ...],
    imports: bool,
    require_owner: bool,
    look_at_handlers: bool,
) -> tuple[list[Diagnostic], int]:
    """Return all that is wrong with a file, and how many jobs it has, sound or not."""
    from yamlsched.definitions import handlers, schedule_file, suppressions
    from yamlsched.definitions.lint.check import check as lint
    from yamlsched.definitions.load import load
    from yamlsched.definitions.paths import check as check_paths
    from yamlsched.definitions.paths import search_path
    from yamlsched.definitions.schema import editor_copy

    loaded = load(schedule_file.read(file), str(file), environment)
    found = list(loaded.diagnostics)
    path = search_path(file, loaded.paths, paths)
    if look_at_handlers:
        found += check_paths(loaded, file)
        by_reading = handlers.check(loaded, [*path, *(Path(entry) for entry in sys.path if entry)])
        found += by_reading
        if imports:
            known = {(one.line, one.column) for one in by_reading}
            found += [one for one in handlers.check_by_import(loaded, path) if (one.line, one.column) not in known]
    found += [*lint(loaded, now, require_owner), *editor_copy.check(loaded, file)]
    found = suppressions.apply_suppressions(found, loaded.source)
    if schedule_file.leads_outside_its_directory(file):
        # a pull request can make it a link to any file of the machine that checks it
        found = [replace(one, source="") for one in found]
    return found, len(loaded.entries)


def _paint(severity: str, text: str) -> str:
    return click.style(text, fg="red" if severity == "error" else "yellow", bold=True)


def _summary(file: Path, jobs: int, found: list[Diagnostic]) -> str:
    mistakes = sum(one.severity == "error" for one in found)
    advice = len(found) - mistakes
    if not mistakes:
        return f"{file}: {_count(jobs, 'job')}, no errors" + (f", {_count(advice, 'warning')}" if advice else "")
    # where the file cannot be read as YAML, nobody knows how many jobs it has
    place = f" in {_count(jobs, 'job')}" if jobs else ""
    return f"{file}: {_count(mistakes, 'error')}, {_count(advice, 'warning')}{place}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
