"""``yamlsched retry``: retry dead and cancelled runs, and make waiting runs due."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.act import payloads
from yamlsched.act import runs as actions
from yamlsched.ask import runs
from yamlsched.cli import _bulk, _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.cli.enqueue import payload_option

HELP = """Retry dead and cancelled runs; make waiting runs due now.

RUN is an id or a key. A retried run gets all of its job's attempts again, and the backoff starts
over. It keeps its
payload unless --payload is passed. Earlier attempts stay counted and recorded.

Examples: retry 118; retry cleanup_nightly:2026-01-14; retry --job purge --dead --since 2h
"""


@verb(HELP)
@_bulk.run_options
@click.option("--dead", is_flag=True, help="Short for --status dead.")
@click.option("--force", is_flag=True, help="Also retry runs that succeeded.")
@payload_option(
    "--payload",
    help="Keyword arguments that replace those of one RUN; they are merged over the job's payload.",
)
@_filters.path_option
def command(
    settings: Settings,
    /,
    dead: bool,
    force: bool,
    payload: dict[str, Any] | None,
    paths: list[str],
    **selection: Any,
) -> int:
    if dead:
        selection["statuses"] = {*selection["statuses"], "dead"}
    if not selection["names"] and not selection["statuses"]:
        raise click.UsageError("which runs? Name them by id or key, or pass --dead or --status")
    if payload is not None and len(selection["names"]) != 1:
        raise click.UsageError("--payload is for one run: name it by its id or key")

    def act(connection: Any, ids: list[int], who: str, expected: Any) -> list[actions.ActionResult]:
        if payload is not None and (run := runs.run(connection, ids[0])):
            payloads.check(connection, settings.file, run.namespace, run.job_type, payload, paths)
        return actions.retry(connection, ids, who, force=force, expected=expected, payload=payload)

    return _bulk.change_runs(settings, "retry", act, selection)
