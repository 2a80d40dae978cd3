"""``yamlsched sync``: apply the file, and create the runs of due slots."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._bulk import confirm
from yamlsched.cli._flow import configure_log, show_messages, target
from yamlsched.cli._settings import Settings, verb
from yamlsched.service.sync import sync
from yamlsched.show import terminal
from yamlsched.sync.files import SyncResult
from yamlsched.text import join_first

CHANGES = ("added", "changed", "retired", "returned")
MAX_LISTED_JOBS = 20


@verb(
    "Apply schedules.yaml, and create the runs of due slots (scheduled times). Also applies a"
    " file that a tick does not apply yet, or one for another environment if --env names it.",
    uses="file dsn env namespace logging",
)
@_filters.path_option
@_filters.yes_option
def command(settings: Settings, /, yes: bool, **options: Any) -> int:
    configure_log(settings)
    # scripts introduce namespaces as well: only a person is asked
    confirmed = (lambda what: confirm(what, yes)) if sys.stdin.isatty() else None
    result = sync(target(settings, options), confirmed)
    show_messages(result.messages)
    if settings.wants_json:
        changes = {change: getattr(result.changes, change, []) for change in CHANGES}
        numbers = {"runs": result.runs, "skipped": sum(gap.slots for gap in result.gaps)}
        applied = result.changes is not None
        click.echo(
            terminal.document(namespace=result.namespace, applied=applied, **changes, **numbers)
        )
    elif settings.verbosity >= 0:
        for line in _lines(result):
            click.echo(line)
    return FINDINGS if result.has_findings else OK


def _lines(result: SyncResult) -> Iterator[str]:
    changes = result.changes
    if changes:
        for change in CHANGES:
            names = getattr(changes, change)
            if names:
                yield f"{change}: {join_first(names, MAX_LISTED_JOBS)}"
    if result.runs or result.gaps:
        skipped = sum(gap.slots for gap in result.gaps)
        yield f"runs created: {result.runs}" + (f"; slots skipped: {skipped}" if skipped else "")
    elif not changes and not result.has_findings:
        yield "nothing to do"
