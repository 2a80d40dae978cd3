"""Every check of a schedule: the errors that ``validate``, ``sync`` and ``plan`` agree on, and
validate's warnings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from yamlsched import __version__, plugin_manager
from yamlsched.errors import EnvironmentFailed
from yamlsched.plugins import FileFinding
from yamlsched.schedule import commands, handlers, paths
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.findings import apply_suppressions, is_suppressed
from yamlsched.schedule.job import Job
from yamlsched.schedule.lint.check import check as lint
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.schema import FILE, INCLUDED, SCHEMA
from yamlsched.schedule.source import ERROR, WARNING, Diagnostic, Part, Source
from yamlsched.text import quoted

MAX_FINDING_CHARS = 1_000
"""Of the message of a plugin's finding, and of its remedy."""


@dataclass(frozen=True)
class Checked:
    """The errors of a file, and the jobs whose own entry is valid, handler and payload included."""

    errors: list[Diagnostic]
    jobs: dict[str, Job]


def check(loaded: Loaded, file: Path, folders: Sequence[str | Path] | None) -> Checked:
    """Return the errors of a file. Handlers are looked up in ``folders`` (--path) first; None skips
    their checks.
    """
    sources = Sources(paths.import_path(file, loaded.paths, folders or ()))
    of_handlers = [] if folders is None else check_handlers(loaded, file, sources)
    diagnostics = apply_suppressions([*loaded.diagnostics, *of_handlers], loaded.source)
    wrong = (
        {job.name for job in loaded.served_jobs if _is_wrong(loaded, job, file, sources)}
        if of_handlers
        else set()
    )
    return Checked(
        [diagnostic for diagnostic in diagnostics if diagnostic.severity == ERROR],
        {name: job for name, job in loaded.jobs.items() if name not in wrong},
    )


def check_handlers(loaded: Loaded, file: Path, sources: Sources) -> list[Diagnostic]:
    """Return what is wrong with ``paths``, with the handlers, without importing them, and with the
    commands.
    """
    return [
        *paths.check(loaded, file),
        *handlers.check(loaded, sources),
        *commands.check(loaded, file),
    ]


def check_all(
    loaded: Loaded,
    file: Path,
    folders: Sequence[str | Path] | None,
    now: datetime,
    imports: bool = False,
    require_owner: bool = False,
) -> list[Diagnostic]:
    """Return the errors and the warnings of a file, for ``validate``.

    ``imports``: import the handlers too, which runs the project's code.
    """
    path = paths.search_path(file, loaded.paths, folders or ())
    sources = Sources(paths.import_path(file, loaded.paths, folders or ()))

    def of_jobs(loaded: Loaded) -> list[Diagnostic]:
        diagnostics = [*loaded.diagnostics, *lint(loaded, now, require_owner)]
        if folders is not None and imports:
            diagnostics += handlers.check_by_import(loaded, path)
            diagnostics += commands.check(loaded, file)
        elif folders is not None:
            diagnostics += check_handlers(loaded, file, sources)
        return diagnostics

    diagnostics = [*_in_environments(loaded, of_jobs), *check_editor_copy(loaded, file)]
    diagnostics += find_by_plugins(loaded)
    return apply_suppressions(diagnostics, loaded.source)


def _in_environments(
    loaded: Loaded, find: Callable[[Loaded], list[Diagnostic]]
) -> Iterator[Diagnostic]:
    """Yield what ``find`` says about the file, and what it says in some environments only, with
    their names.
    """
    everywhere = find(loaded.in_environment(None))
    yield from everywhere
    seen = {diagnostic.place for diagnostic in everywhere}
    named: dict[Diagnostic, list[str]] = {}
    for name in loaded.environments:
        for diagnostic in find(loaded.in_environment(name)):
            if diagnostic.place not in seen:
                named.setdefault(diagnostic, []).append(name)
    for diagnostic, names in named.items():
        kind = "environments" if len(names) > 1 else "environment"
        message = f"{diagnostic.message} (in {kind} {', '.join(names)})"
        yield replace(diagnostic, message=message)


def check_by_plugins(loaded: Loaded) -> list[Diagnostic]:
    """Return what plugins find in a valid file, without what comments in it suppress."""
    findings = [entry for entry in find_by_plugins(loaded) if not is_suppressed(entry)]
    return sorted(findings, key=lambda entry: entry.order)


def find_by_plugins(loaded: Loaded) -> list[Diagnostic]:
    """Return what plugins find in a valid file. The jobs of one with errors are not complete."""
    if loaded.has_errors:
        return []
    return [_diagnostic(loaded, finding) for finding in plugin_manager.check_file(loaded)]


def _diagnostic(loaded: Loaded, finding: FileFinding) -> Diagnostic:
    """Return a plugin's finding with its position."""
    message, span = finding.message, (0, 0)
    if finding.job in loaded.entries:
        message = f"job {quoted(finding.job)}: {message}"
        written = loaded.written(finding.job, finding.key) if finding.key else None
        span = (written or loaded.spot(finding.job).key).node.span
    message, remedy = message[:MAX_FINDING_CHARS], finding.remedy[:MAX_FINDING_CHARS]
    return loaded.source.diagnostic(span, finding.code, message, remedy, (), ERROR)


def _is_wrong(loaded: Loaded, job: Job, file: Path, sources: Sources) -> bool:
    diagnostics = [
        *handlers.check(loaded, sources, job),
        *commands.check(loaded, file, job),
    ]
    return any(
        diagnostic.severity == ERROR and not is_suppressed(diagnostic) for diagnostic in diagnostics
    )


MODELINE = re.compile(r"^#[ \t]*yaml-language-server:[ \t]*\$schema=(\S+)", re.M)
MAX_HEAD_CHARS = 10_000
"""Editors search this part of the file for the line."""


def check_editor_copy(loaded: Loaded, file: Path) -> list[Diagnostic]:
    """Return a warning for each file if the schema that it names, or that is next to the main one,
    differs from the installed one.
    """
    warnings = []
    folder = file.resolve().parent
    for part in loaded.source.parts:
        here, main = (os.path.dirname(name) or "." for name in (part.file, loaded.source.file))
        warnings += _check_schema(loaded.source, part, folder / os.path.relpath(here, main))
    return warnings


def _check_schema(source: Source, part: Part, folder: Path) -> list[Diagnostic]:
    is_included = part.start > 0
    named = MODELINE.search(source.text, part.start, min(part.end, part.start + MAX_HEAD_CHARS))
    name = named[1] if named else FILE.name
    if "://" in name or (is_included and not named):
        return []
    try:
        if json.loads(schedule_file.read(folder / name)) == (INCLUDED if is_included else SCHEMA):
            return []
    except EnvironmentFailed:
        if not named:
            return []  # a copy is optional
    except (ValueError, RecursionError):
        pass
    message = (
        f"the schema {quoted(name)} is not that of yamlsched {__version__}: editors may show wrong"
        " help"
    )
    option = " --included" if is_included else ""
    remedy = f"Update it: yamlsched schema{option} > {shlex.quote(name)}"
    span = named.span(1) if named else (0, 0)
    return [source.diagnostic(span, "YS416", message, remedy, (), WARNING)]
