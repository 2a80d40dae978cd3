"""The table of namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import click

from yamlsched.ask.namespaces import NamespaceHealth, read_all, summary
from yamlsched.ask.problem import Thresholds
from yamlsched.cli import FINDINGS, OK
from yamlsched.cli._settings import Settings
from yamlsched.db.query import now
from yamlsched.show import terminal
from yamlsched.show.document import Document, Entries, Entry, Part, Problems, Section
from yamlsched.show.html import FORMATS

NAMESPACE_HEADINGS = ("namespace", "state", "jobs", "last tick", "by", "open", "dead in a day")
MAX_NAMESPACES_LISTED = 30
"""Of more namespaces, the healthy ones are only counted."""
MAX_PROBLEMS_LISTED = 5
"""Problems of one namespace that are listed; --check prints all."""


def show(settings: Settings, thresholds: Thresholds, is_check: bool, show_all: bool) -> int:
    """Print the health of all namespaces, worst first, and return the exit code."""
    with settings.connect() as connection:
        instant = now(connection)
        namespaces, unused = read_all(connection, thresholds)
    problems = [problem for state in namespaces for problem in state.problems]
    if settings.wants_json or not is_check:
        document = Document("yamlsched status", _in_words(namespaces, unused, show_all))
        summaries = [summary(state.health, thresholds) for state in namespaces]
        settings.echo(
            FORMATS[settings.format](document),
            now=instant,
            healthy=not problems,
            namespaces=summaries,
            unused=unused,
        )
    elif problems:
        for state in namespaces:
            for problem in state.problems:
                click.echo(terminal.printable_line(f"{state.health.namespace}: {problem.what}"))
    else:
        jobs = sum(state.jobs for state in namespaces)
        click.echo(
            f"ok: {terminal.count(len(namespaces), 'namespace')}, {terminal.count(jobs, 'job')}"
        )
    return FINDINGS if is_check and problems else OK


def _in_words(
    namespaces: list[NamespaceHealth], unused: list[str], show_all: bool
) -> Iterator[Part]:
    listed = [
        state
        for state in namespaces
        if state.problems or show_all or len(namespaces) <= MAX_NAMESPACES_LISTED
    ]
    omitted, note = len(namespaces) - len(listed), ""
    if unused:
        names = f": {', '.join(unused)}" if show_all else "; --all lists them"
        note = (
            f"{terminal.count(len(unused), 'namespace')} without jobs, unfinished runs and"
            f" hosts{names}"
        )
    if not (namespaces or unused):
        yield Entries([Entry("no namespaces yet: run yamlsched sync to apply a schedules.yaml")])
    else:
        more = f"and {omitted} more are healthy: --all lists them" if omitted else ""
        yield Section("", NAMESPACE_HEADINGS, [_line(state) for state in listed], more, note)
    if problems := [problem for state in listed for problem in _problems(state)]:
        yield Problems("Needs attention", False, problems)


def _problems(state: NamespaceHealth) -> Iterator[tuple[str, str]]:
    """Yield the first problems of a namespace; the last of them with the command that lists all."""
    name, more = state.health.namespace, len(state.problems) - MAX_PROBLEMS_LISTED
    hint = (f"and {more} more: " if more > 0 else "") + f"yamlsched status --namespace {name}"
    first = state.problems[:MAX_PROBLEMS_LISTED]
    yield from (
        (f"{name}: {problem.what}", hint if problem is first[-1] else "") for problem in first
    )


def _line(state: NamespaceHealth) -> tuple[str, ...]:
    health, problems = state.health, len(state.problems)
    label = (
        terminal.coloured("late", terminal.count(problems, "problem"))
        if problems
        else terminal.coloured("ok")
    )
    return (
        health.namespace,
        label,
        str(state.jobs),
        terminal.ago(health.last_tick_at, health.now) if health.last_tick_at else "never",
        health.last_tick_host or "-",
        str(state.open_runs or "-"),
        str(health.queue["dead_last_day"] or "-"),
    )
