"""``yamlsched resume``: end a pause."""

from __future__ import annotations

import click

from yamlsched.cli import _bulk, _filters, _output
from yamlsched.cli._settings import Settings, Verb


@click.command(cls=Verb, help="Resume paused jobs. The slots of the pause are not run: see backfill.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="All paused jobs with this tag.")
@click.option("--all", "everything", is_flag=True, help="All paused jobs of the namespace.")
@_bulk.by_option
@_bulk.yes_option
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
    from yamlsched.operations import actions, history, pausing

    if everything == bool(jobs or tags):
        raise click.UsageError("which jobs? Name them, or pass --tag or --all")
    with settings.connect() as connection:
        namespace = history.namespace_of(connection, namespace, settings.file)
        ids = _bulk.select_jobs(connection, namespace, jobs, tags)
        if not jobs:
            ids = pausing.paused(connection, ids)
            _bulk.confirm(f"resume {_output.count(len(ids), 'job')}", yes)
        answers = pausing.resume(connection, namespace, ids, by or actions.operator())
    return _bulk.report(settings, answers)
