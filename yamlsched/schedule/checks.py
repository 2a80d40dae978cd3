"""Every check of a schedule: the errors that ``validate``, ``sync`` and ``plan`` agree on, and
validate's warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from yamlsched import plugin_manager
from yamlsched.plugins import FileFinding
from yamlsched.schedule import commands, handlers, paths
from yamlsched.schedule.findings import Findings, apply_suppressions, is_suppressed
from yamlsched.schedule.job import Job
from yamlsched.schedule.lint.jobs import check as lint
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.source import ERROR, Diagnostic
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
    findings = Findings(loaded.source)
    if folders is not None:
        check_handlers(loaded, file, _sources(loaded, file, folders), findings)
    diagnostics = [*loaded.diagnostics, *findings.diagnostics()]
    suppressed = apply_suppressions(diagnostics, loaded.source)
    return Checked(
        [diagnostic for diagnostic in suppressed if diagnostic.severity == ERROR],
        {name: job for name, job in loaded.jobs.items() if ("jobs", name) not in findings.invalid},
    )


def _sources(loaded: Loaded, file: Path, folders: Sequence[str | Path]) -> Sources:
    return Sources(paths.import_path(file, loaded.paths, folders))


def check_handlers(
    loaded: Loaded, file: Path, sources: Sources, findings: Findings, imports: bool = False
) -> None:
    """Report what is wrong with ``paths``, with the handlers and with the commands.

    ``imports``: import the handlers too, which runs the project's code.
    """
    paths.check(loaded, file, findings)
    handlers.check(loaded, sources, findings, imports)
    commands.check(loaded, file, findings)


def check_all(
    loaded: Loaded,
    file: Path,
    folders: Sequence[str | Path] | None,
    now: datetime,
    imports: bool = False,
    require_owner: bool = False,
) -> list[Diagnostic]:
    """Return the errors and the warnings of a file, for ``validate``."""
    sources = _sources(loaded, file, folders or ())

    def of_jobs(loaded: Loaded) -> list[Diagnostic]:
        findings = Findings(loaded.source)
        if folders is not None:
            check_handlers(loaded, file, sources, findings, imports)
        found = [*loaded.diagnostics, *lint(loaded, now, require_owner)]
        return [*found, *findings.diagnostics()]

    diagnostics = [*_in_environments(loaded, of_jobs), *find_by_plugins(loaded)]
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
