"""``yamlsched validate``: every check of schedules.yaml that needs no database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import jsonschema

from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule.checks import check_all
from yamlsched.schedule.formats import FORMATS, as_text
from yamlsched.schedule.include import including
from yamlsched.schedule.load import Loaded, load_file
from yamlsched.schedule.node import DEFAULTS
from yamlsched.schedule.schema import SCHEMA
from yamlsched.schedule.source import Diagnostic
from yamlsched.show import terminal
from yamlsched.show.terminal import paint
from yamlsched.text import escape_line

FOR_REVIEWS = ("github", "sarif")
OF_THE_HOST = ("YS310", "YS311", "YS422")
"""Programs and directories of the hosts that run the jobs, which a machine for reviews does not
have.
"""


@verb(
    "Check schedules.yaml, and report every error with its position and a fix. Needs no"
    " database and imports no handler. Exit 1 if there are errors, 3 if a file cannot be read.",
    uses="file env",
    formats=("text", "concise", "json", "github", "sarif"),
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--import", "imports", is_flag=True, help="Import the handlers, which executes their modules."
)
@_filters.path_option
@click.option("--require-owner", is_flag=True, help="Warn about jobs without an owner.")
def command(
    settings: Settings,
    files: tuple[Path, ...],
    strict: bool,
    imports: bool,
    paths: tuple[str, ...],
    require_owner: bool,
) -> int:
    now = datetime.now(UTC)
    diagnostics: list[Diagnostic] = []
    names: list[str] = []
    summaries = []
    for file, loaded in _loaded(files or (settings.file,), settings).items():
        of_file = check_all(loaded, file, paths, now, imports, require_owner)
        if not loaded.has_errors:
            _confirm(file, loaded)
        if strict:
            of_file = [replace(entry, severity="error") for entry in of_file]
        if settings.format in FOR_REVIEWS:
            of_file = [
                replace(entry, severity="warning") if entry.code in OF_THE_HOST else entry
                for entry in of_file
            ]
        diagnostics += of_file
        names += [part.file for part in loaded.source.parts]
        summaries.append(_summary(loaded, of_file))
    paint_text = partial(as_text, paint=_paint)
    write = paint_text if settings.format == "text" else FORMATS[settings.format]
    if text := write(diagnostics, names):
        click.echo(text)
    if settings.format == "text":
        if text:
            click.echo()
        for summary in summaries:
            click.echo(escape_line(summary))
    return int(any(diagnostic.severity == "error" for diagnostic in diagnostics))


def _loaded(files: Iterable[Path], settings: Settings) -> dict[Path, Loaded]:
    """Return the files, each once; for an included one, which has no version, the one that includes
    it.
    """
    found: dict[Path, Loaded] = {}
    for file in files:
        loaded = load_file(file, settings.env, is_reviewed=True)
        if loaded.root and "version" not in loaded.root.value:
            main = including(file, settings.file.name)
            if main is not None:
                file, loaded = main, load_file(main, settings.env, is_reviewed=True)
        found.setdefault(file, loaded)
    return found


def _confirm(file: Path, loaded: Loaded) -> None:
    """Ask the library jsonschema, too, so that no file passes here that an editor marks as wrong.

    Raises EnvironmentFailed if the two do not agree.
    """
    document: Any = loaded.root.node.plain() if loaded.root else None
    for layer in loaded.root.layers() if loaded.root else ():
        if layer.path != (DEFAULTS,):
            del document[layer.path[-1]]  # of an included file
    for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(document):
        raise EnvironmentFailed(
            f"{file}: {error.json_path} does not match schedules.schema.json, although no error was"
            f" found: {error.message}. This is a bug of yamlsched; please report it"
        )


def _paint(severity: str, text: str) -> str:
    return paint(text, "bold red" if severity == "error" else "bold yellow")


def _summary(loaded: Loaded, diagnostics: list[Diagnostic]) -> str:
    jobs, file = len(loaded.entries), loaded.source.file
    if included := len(loaded.source.parts) - 1:
        file += f" and {terminal.count(included, 'included file')}"
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    if not errors:
        return f"{file}: {terminal.count(jobs, 'job')}, no errors" + (
            f", {terminal.count(warnings, 'warning')}" if warnings else ""
        )
    place = (
        f" in {terminal.count(jobs, 'job')}" if jobs else ""
    )  # unknown if the file is not valid YAML
    return (
        f"{file}: {terminal.count(errors, 'error')}, {terminal.count(warnings, 'warning')}{place}"
    )
