"""Tables that several verbs print: namespaces, and failures by type."""

from __future__ import annotations

from collections.abc import Sequence

import click

from yamlsched.ask import attention
from yamlsched.ask.attention import NamespaceHealth, Thresholds
from yamlsched.ask.failures import FailureGroup, Failures, example, how_they_ended
from yamlsched.cli import FINDINGS, OK
from yamlsched.cli._settings import Settings
from yamlsched.db.query import now
from yamlsched.show import terminal

MAX_NAMESPACES_LISTED = 30
"""Of more namespaces, the healthy ones are only counted."""
MAX_PROBLEMS_LISTED = 5
"""Problems of one namespace that are listed; --check prints all."""


def show(settings: Settings, thresholds: Thresholds, is_check: bool, show_all: bool) -> int:
    """Print the health of all namespaces, worst first, and return the exit code."""
    with settings.connect() as connection:
        instant = now(connection)
        namespaces, unused = attention.read_all(connection, thresholds)
    problems = [problem for state in namespaces for problem in state.problems]
    if settings.wants_json:
        summaries = [attention.summary(state.health, thresholds) for state in namespaces]
        click.echo(terminal.document(now=instant, healthy=not problems, namespaces=summaries, unused=unused))
    elif not is_check:
        click.echo(_screen(namespaces, unused, show_all))
    elif problems:
        for state in namespaces:
            for problem in state.problems:
                click.echo(terminal.printable_line(f"{state.health.namespace}: {problem.what}"))
    else:
        jobs = sum(state.jobs for state in namespaces)
        click.echo(f"ok: {terminal.count(len(namespaces), 'namespace')}, {terminal.count(jobs, 'job')}")
    return FINDINGS if is_check and problems else OK


def _screen(namespaces: list[NamespaceHealth], unused: list[str], show_all: bool) -> str:
    listed = [state for state in namespaces if state.problems or show_all or len(namespaces) <= MAX_NAMESPACES_LISTED]
    lines = []
    if listed:
        headings = ("NAMESPACE", "STATE", "JOBS", "LAST TICK", "BY", "OPEN", "DEAD IN A DAY")
        lines.append(terminal.table(headings, [_line(state) for state in listed]))
    if omitted := len(namespaces) - len(listed):
        lines.append(f"and {omitted} more are healthy: --all lists them")
    if unused:
        names = f": {', '.join(unused)}" if show_all else "; --all lists them"
        lines.append(f"{terminal.count(len(unused), 'namespace')} without jobs, unfinished runs and hosts{names}")
    if bad := [state for state in namespaces if state.problems]:
        lines += ["", terminal.paint("Needs attention", "bold")]
        for state in bad:
            first = state.problems[:MAX_PROBLEMS_LISTED]
            lines += [f"  {terminal.printable_line(f'{state.health.namespace}: {problem.what}')}" for problem in first]
            more = len(state.problems) - len(first)
            lines.append(
                f"      {f'and {more} more: ' if more else ''}yamlsched status --namespace {state.health.namespace}"
            )
    return "\n".join(lines) or "no namespaces yet: run yamlsched sync to apply a schedules.yaml"


def _line(state: NamespaceHealth) -> tuple[str, ...]:
    health = state.health
    if state.problems:
        label = terminal.coloured("late", terminal.count(len(state.problems), "problem"))
    else:
        label = terminal.coloured("ok")
    return (
        health.namespace,
        label,
        str(state.jobs),
        terminal.ago(health.last_tick_at, health.now) if health.last_tick_at else "never",
        health.last_tick_host or "-",
        str(state.open_runs or "-"),
        str(health.totals.dead_last_day or "-"),
    )


HEADINGS = ("RUNS", "JOB", "NOW", "ATTEMPTS", "FIRST", "LAST", "EXAMPLE", "ERROR")
CSV_COLUMNS = (
    *("job_type", "error_type", "is_call", "runs", "dead", "failing", "recovered", "attempts", "first_at", "last_at"),
    *("example_id", "example_key", "example_error"),
)


def table(failures: Failures, groups: Sequence[FailureGroup]) -> str:
    """Return a table of ``groups``, which are some of ``failures``."""
    return terminal.table(HEADINGS, [_failure_line(failures, group) for group in groups], free_text="ERROR")


def comma_separated(groups: Sequence[FailureGroup]) -> str:
    return terminal.comma_separated(CSV_COLUMNS, [[getattr(group, name) for name in CSV_COLUMNS] for group in groups])


def _failure_line(failures: Failures, group: FailureGroup) -> tuple[str, ...]:
    more = "+" if failures.is_bounded(group) else ""
    worst = "dead" if group.dead else "failing" if group.failing else "succeeded"
    return (
        f"{group.runs}{more}",
        f"{group.job_type} (on_dead)" if group.is_call else group.job_type,
        terminal.coloured(worst, how_they_ended(group)),
        f"{group.attempts}{more}",
        terminal.instant(group.first_at),
        terminal.instant(group.last_at),
        str(group.example_id),
        example(group),
    )
