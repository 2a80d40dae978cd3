"""What the verbs that change runs share: which runs, the confirmation, and the answers."""

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

PAGE_RUNS = 5_000
"""Runs that are chosen by one statement."""

by_option = click.option("--by", metavar="WHO", help="Who does this; recorded with the action (the user on this host).")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show which runs would change, and change nothing.")

Action = Callable[..., "list[ActionResult]"]


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
    """Find the runs that ``names`` or the filter ``given`` mean, ask, ``act`` on them, and print what became of each.

    ``act`` is called with the connection, the ids and the states in which they were chosen.
    """
    from yamlsched.operations import history
    from yamlsched.runs import Status
    from yamlsched.store.history import now

    namespace = given.pop("namespace")
    is_filtered = any(given.values()) or bool(statuses)
    if names and is_filtered:
        raise click.UsageError(f"name the runs to {verb}, or select them by options, not both")
    if not names and not is_filtered:
        raise click.UsageError(
            f"which runs? Name them by id or key, or select them by options: yamlsched {verb} --help"
        )
    with settings.connect() as connection:
        if not names or not all(map(history.is_id, names)):
            namespace = history.namespace_of(connection, namespace, settings.file)
        if names:
            ids = [history.find(connection, namespace or "", name) for name in names]
            expected = tuple(Status)
        else:
            expected = tuple(Status(status) for status in statuses)
            wanted = _filters.build_filter(now(connection), statuses=statuses, **given)
            ids = matching_ids(connection, namespace, wanted)
            if not ids:
                is_open = bool(statuses) and not {*statuses} & {"succeeded", "dead", "cancelled"}
                click.echo("no unfinished runs" if is_open else "no matching runs", err=True)
                return OK
        if dry_run:
            report_dry_run(settings, verb, ids)
            return OK
        if not names:
            confirm(f"{verb} {_output.count(len(ids), 'run')}", yes)
        answers = act(connection, ids, expected)
    return report(settings, answers)


def matching_ids(connection: psycopg.Connection[Any], namespace: str, chosen: Any) -> list[int]:
    """Return the ids of all runs of a filter, oldest first."""
    from yamlsched.operations import history

    ids: list[int] = []
    while page := history.runs(connection, namespace, chosen, PAGE_RUNS, before=ids[-1] if ids else None):
        ids += [row.id for row in page]
        if len(page) < PAGE_RUNS:
            break
    return ids[::-1]


def confirm(what: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}: pass --yes to confirm without a terminal")
    click.echo(f"{what}? [y/N]: ", nl=False, err=True)  # click.confirm writes a blank to stdout, up to click 8.3
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort


def report_dry_run(settings: Settings, verb: str, ids: list[int]) -> None:
    if settings.wants_json:
        click.echo(_output.document(dry_run=True, verb=verb, run_ids=ids))
    else:
        more = " ..." if len(ids) > 20 else ""
        click.echo(f"would {verb} {_output.count(len(ids), 'run')}: {' '.join(map(str, ids[:20]))}{more}")


def report(settings: Settings, answers: list[ActionResult]) -> int:
    """Print what became of each; 1 where something could not be done."""
    if settings.wants_json:
        click.echo(_output.document(results=answers))
    else:
        many = len(answers) > 20
        for answer in answers:
            if not (many and answer.changed):
                click.echo(f"{answer.target} {answer.what}", err=not answer.changed)
        if many:
            click.echo(f"{sum(answer.changed for answer in answers)} of {len(answers)} changed")
    return OK if all(answer.changed for answer in answers) else FINDINGS


def select_jobs(
    connection: psycopg.Connection[Any], namespace: str, names: Sequence[str], tags: Sequence[str]
) -> list[int]:
    """Return the ids of the jobs that are meant; with neither names nor tags, of all that are in the file."""
    from yamlsched.operations import history
    from yamlsched.store.history import jobs as all_jobs

    chosen = history.definitions(connection, namespace, names, tags)
    present = {job.id for job in all_jobs(connection, namespace) if job.retired_at is None or job.job_type in names}
    return sorted(present if chosen is None else present & set(chosen))
