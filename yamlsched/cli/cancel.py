"""``yamlsched cancel``: end runs, until they are retried."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.act import runs
from yamlsched.cli import _bulk
from yamlsched.cli._settings import Settings, verb

HELP = """Cancel unfinished runs.

Waiting runs are cancelled at once. The handler of a running run is killed at its worker's next
heartbeat. RUN is an id
or a key. Options without --status select all unfinished runs. A retry makes a cancelled run due
again.
"""
UNFINISHED = ("queued", "failed", "running")


@verb(HELP)
@_bulk.run_options
@click.option("--reason", metavar="TEXT", help="Why; recorded with the action.")
def command(settings: Settings, /, reason: str | None, **selection: Any) -> int:
    def act(connection: Any, ids: list[int], who: str, expected: Any) -> list[runs.ActionResult]:
        return runs.cancel(connection, ids, who, reason=reason, expected=expected)

    filters = {name: selection[name] for name in ("jobs", "tags", "statuses", "since", "until")}
    if any(filters.values()) and not selection["names"]:
        selection["statuses"] = selection["statuses"] or UNFINISHED
    return _bulk.change_runs(settings, "cancel", act, selection)
