"""What the verbs that change runs and jobs share: the selection, the confirmation, and the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli import FINDINGS, OK, _filters, _output
from yamlsched.cli._settings import Settings

if TYPE_CHECKING:
    import psycopg

    from yamlsched.operations.actions import ActionResult

MAX_LISTED = 20
"""Of more runs, only the failures are reported one by one."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Show which runs would change, and change nothing.")

Action = Callable[..., "list[ActionResult]"]
"""Called with a connection, the ids of runs, and the states in which they were selected."""


def change_runs(
    settings: Settings,
    verb: str,
    names: Sequence[str],
    statuses: Sequence[str],
    given: dict[str, Any],
    yes: bool,
    dry_run: bool,
    act: Action,
) -> int:
    """Select runs by ``names`` or by the filter ``given``, confirm, ``act`` on them, and print the results."""
    from yamlsched.operations import actions, history
    from yamlsched.runs import Status

    namespace = given.pop("namespace")
    is_filtered = any(given.values()) or bool(statuses)
    if names and is_filtered:
        raise click.UsageError(f"name the runs to {verb}, or select them by options, not both")
    if not names and not is_filtered:
        raise click.UsageError(
            f"which runs? Name them by id or key, or select them by options: yamlsched {verb} --help"
        )
    rejected: list[ActionResult] = []
    with settings.connect() as connection:
        if not names or not all(map(history.is_id, names)):
            namespace = history.namespace_of(connection, namespace, settings.file)
        if names:
            ids, rejected = actions.find_each(connection, namespace or "", names)
        else:
            assert namespace is not None
            filter = _filters.build_filter(connection, namespace, settings.file, statuses=statuses, **given)
            ids = history.matching_ids(connection, namespace, filter)
            if not ids:
                is_open = bool(statuses) and not {*statuses} & {"succeeded", "dead", "cancelled"}
                click.echo("no unfinished runs match" if is_open else "no runs match", err=True)
                return OK
        if dry_run:
            return report_dry_run(settings, verb, ids, rejected)
        if not names:
            confirm(f"{verb} {_output.count(len(ids), 'run')}", yes)
        expected = tuple(Status) if names else tuple(Status(status) for status in statuses)
        results = act(connection, ids, expected) if ids else []
    return report(settings, verb, [*rejected, *results])


def confirm(what: str, yes: bool) -> None:
    """Ask on a terminal; raise a usage error elsewhere, unless ``yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}: pass --yes to confirm without a terminal")
    click.echo(f"{what}? [y/N]: ", nl=False, err=True)  # click.confirm writes a blank to stdout, up to click 8.3
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def report_dry_run(settings: Settings, verb: str, ids: list[int], rejected: list[ActionResult]) -> int:
    if settings.wants_json:
        click.echo(_output.document(dry_run=True, verb=verb, run_ids=ids))
    else:
        more = " ..." if len(ids) > MAX_LISTED else ""
        click.echo(f"would {verb} {_output.count(len(ids), 'run')}: {' '.join(map(str, ids[:MAX_LISTED]))}{more}")
        for result in rejected:
            click.echo(_output.printable_line(f"{result.target} {result.what}"), err=True)
    return FINDINGS if rejected else OK


def report(settings: Settings, verb: str, results: list[ActionResult]) -> int:
    """Print the result of each, or the number of those that changed; return 1 if one did not."""
    changed = sum(result.changed for result in results)
    if settings.wants_json:
        click.echo(_output.document(results=results))
    else:
        for result in results:
            if len(results) <= MAX_LISTED or not result.changed:
                click.echo(_output.printable_line(f"{result.target} {result.what}"), err=not result.changed)
        if len(results) > MAX_LISTED:
            of = "" if changed == len(results) else f" of {len(results)}"
            click.echo(f"{verb}: {changed}{of} changed")
    return OK if changed == len(results) else FINDINGS


def select_jobs(
    connection: psycopg.Connection[Any], namespace: str, names: Sequence[str], tags: Sequence[str], everything: bool
) -> list[int]:
    """Return the ids of the jobs that are named or tagged, or of all that are in the file."""
    from yamlsched.operations import history
    from yamlsched.store.history import jobs

    if everything == bool(names or tags):
        raise click.UsageError("which jobs? Name them, or pass --tag or --all")
    selected = history.definitions(connection, namespace, names, tags)
    present = {job.id for job in jobs(connection, namespace) if job.retired_at is None or job.job_type in names}
    return sorted(present if selected is None else present & set(selected))
