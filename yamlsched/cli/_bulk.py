"""What the verbs that change runs and jobs share: the selection, the confirmation, and
the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import psycopg

from yamlsched.act import runs
from yamlsched.act.runs import ActionResult
from yamlsched.ask import history, search
from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._settings import Settings
from yamlsched.runs.lifecycle import Status
from yamlsched.show import terminal

MAX_LISTED = 20
"""Of more runs, only the failures are reported one by one."""

run_options = _filters.combine(
    click.argument("names", nargs=-1, metavar="[RUN]..."),
    _filters.filter_options,
    _filters.by_option,
    _filters.yes_option,
    click.option(
        "--dry-run", is_flag=True, help="Show which runs would change, and change nothing."
    ),
)
"""The options that select runs, for a verb that passes them to ``change_runs``."""
job_options = _filters.combine(
    click.argument("names", nargs=-1, metavar="[JOB]...", shell_complete=_filters.jobs),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="TAG",
        shell_complete=_filters.tags,
        help="All jobs with this tag.",
    ),
    click.option("--all", "everything", is_flag=True, help="All jobs of the namespace."),
    _filters.by_option,
    _filters.yes_option,
)
"""The options that select jobs, for a verb that passes them to ``change_jobs``."""

Action = Callable[..., "list[ActionResult]"]


def change_runs(settings: Settings, verb: str, act: Action, selection: dict[str, Any]) -> int:
    """Select runs by the values of ``run_options``, confirm, ``act`` on them, and print the
    results.

    ``act`` gets a connection, the ids, who does this, and the states in which the runs were
    selected.
    """

    names, by, yes, dry_run = map(selection.pop, ("names", "by", "yes", "dry_run"))
    if names and any(selection.values()):
        raise click.UsageError(f"name the runs to {verb}, or select them by options, not both")
    if not names and not any(selection.values()):
        raise click.UsageError(
            f"which runs? Name them by id or key, or select them by options: yamlsched {verb}"
            " --help"
        )
    statuses = selection["statuses"]
    rejected: list[ActionResult] = []
    with settings.connect() as connection:
        if names:
            namespace = settings.namespace_of_runs(connection, names)
            ids, rejected = runs.find_each(connection, namespace, names)
        else:
            namespace = history.namespace_of(connection, settings.namespace, settings.file)
            filter = _filters.build_filter(connection, namespace, settings.file, **selection)
            ids = search.matching_ids(connection, namespace, filter)
            if not ids:
                is_open = bool(statuses) and not {*statuses} & {"succeeded", "dead", "cancelled"}
                click.echo("no unfinished runs match" if is_open else "no runs match", err=True)
                return OK
        if dry_run:
            return report_dry_run(settings, verb, ids, rejected)
        if not names:
            confirm(f"{verb} {terminal.count(len(ids), 'run')}", yes)
        expected = tuple(Status) if names else tuple(map(Status, statuses))
        results = act(connection, ids, by or runs.operator(), expected) if ids else []
    return report(settings, verb, [*rejected, *results])


def change_jobs(
    settings: Settings,
    verb: str,
    act: Action,
    names: Sequence[str],
    tags: Sequence[str],
    everything: bool,
    by: str | None,
    yes: bool,
    among: Callable[[psycopg.Connection[Any], Sequence[int]], list[int]] | None = None,
) -> int:
    """Select jobs by the values of ``job_options``, confirm, ``act`` on them, and print the
    results.

    ``act`` gets a connection, the namespace, the ids, and who does this. Without names, only those
    ``among`` are selected.
    """

    if everything == bool(names or tags):
        raise click.UsageError("which jobs? Name them, or pass --tag or --all")
    with settings.connect_in() as (connection, namespace):
        ids = history.present_jobs(connection, namespace, names, tags)
        if not names:
            ids = among(connection, ids) if among else ids
            if not ids:
                click.echo(f"no jobs to {verb}", err=True)
                return OK
            confirm(f"{verb} {terminal.count(len(ids), 'job')}", yes)
        results = act(connection, namespace, ids, by or runs.operator())
    return report(settings, verb, results)


def confirm(what: str, yes: bool) -> None:
    """Ask on a terminal; raise a usage error elsewhere, unless ``yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}: pass --yes to confirm without a terminal")
    # click.confirm writes a blank to stdout, up to click 8.3
    click.echo(f"{what}? [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def report_dry_run(
    settings: Settings, verb: str, ids: list[int], rejected: list[ActionResult]
) -> int:
    if settings.wants_json:
        click.echo(terminal.document(dry_run=True, verb=verb, run_ids=ids))
    else:
        more = " ..." if len(ids) > MAX_LISTED else ""
        click.echo(
            f"would {verb} {terminal.count(len(ids), 'run')}:"
            f" {' '.join(map(str, ids[:MAX_LISTED]))}{more}"
        )
        for result in rejected:
            click.echo(terminal.printable_line(f"{result.target} {result.what}"), err=True)
    return FINDINGS if rejected else OK


def report(settings: Settings, verb: str, results: list[ActionResult]) -> int:
    """Print the result of each, or the number of those that changed; return 1 if one did not."""
    changed = sum(result.changed for result in results)
    if settings.wants_json:
        click.echo(terminal.document(results=results))
    else:
        for result in results:
            if len(results) <= MAX_LISTED or not result.changed:
                click.echo(
                    terminal.printable_line(f"{result.target} {result.what}"),
                    err=not result.changed,
                )
        if len(results) > MAX_LISTED:
            of = "" if changed == len(results) else f" of {len(results)}"
            click.echo(f"{verb}: {changed}{of} changed")
    return OK if changed == len(results) else FINDINGS
