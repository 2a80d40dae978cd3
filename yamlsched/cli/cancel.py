"""``yamlsched cancel``: end runs, until they are retried."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.cli import _bulk, _filters
from yamlsched.cli._settings import Settings, Verb

HELP = """Cancel unfinished runs.

Waiting runs are cancelled at once. The handler of a running run is killed at its worker's next heartbeat. RUN is an id
or a key. Options without --status select all unfinished runs. A retry makes a cancelled run due again.
"""
UNFINISHED = ("queued", "failed", "running")


@click.command(cls=Verb, help=HELP)
@click.argument("names", nargs=-1, metavar="[RUN]...")
@_filters.filter_options
@click.option("--reason", metavar="TEXT", help="Why; recorded with the action.")
@_filters.by_option
@_filters.yes_option
@_bulk.dry_run_option
@click.pass_obj
def command(
    settings: Settings,
    /,
    names: tuple[str, ...],
    statuses: tuple[str, ...],
    reason: str | None,
    by: str | None,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> int:
    from yamlsched.operations import actions

    def act(connection: Any, ids: list[int], expected: Any) -> list[actions.ActionResult]:
        return actions.cancel(connection, ids, by or actions.operator(), reason=reason, expected=expected)

    is_filtered = any(value for name, value in given.items() if name != "namespace")
    wanted = statuses or (UNFINISHED if is_filtered and not names else ())
    return _bulk.change_runs(settings, "cancel", names, wanted, given, yes, dry_run, act)
