"""``yamlsched resume``: end a pause."""

from __future__ import annotations

import click

from yamlsched.cli import OK, _bulk, _filters, _output
from yamlsched.cli._settings import Settings, Verb


@click.command(cls=Verb, help="Resume paused jobs. The slots of the pause are not run: see backfill.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="All paused jobs with this tag.")
@click.option("--all", "everything", is_flag=True, help="All paused jobs of the namespace.")
@_filters.by_option
@_filters.yes_option
@_filters.namespace_option
@click.pass_obj
def command(
    settings: Settings,
    /,
    jobs: tuple[str, ...],
    tags: tuple[str, ...],
    everything: bool,
    by: str | None,
    yes: bool,
    namespace: str | None,
) -> int:
    from yamlsched.operations import actions, pausing

    with settings.connect_in(namespace) as (connection, namespace):
        ids = _bulk.select_jobs(connection, namespace, jobs, tags, everything)
        if not jobs:
            ids = pausing.paused(connection, ids)
            if not ids:
                click.echo("no jobs are paused", err=True)
                return OK
            _bulk.confirm(f"resume {_output.count(len(ids), 'job')}", yes)
        results = pausing.resume(connection, namespace, ids, by or actions.operator())
    return _bulk.report(settings, "resume", results)
