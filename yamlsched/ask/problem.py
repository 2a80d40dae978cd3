"""A problem that needs attention: how severe it is, and the command that helps. Pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from yamlsched.ask.health import LAST, JobHealth
from yamlsched.ask.queues import MAX_NAMES
from yamlsched.show.terminal import count
from yamlsched.text import join_first

MIN_JOBS_OF_ONE_CAUSE = 4
"""Of so many jobs that died of one type of error, one problem is reported: they probably have one
cause.
"""
Kind = Literal[
    "tick",
    "slots",
    "in_doubt",
    "dead",
    "held_up",
    "stuck",
    "lack",
    "start",
    "late",
    "skipped",
    "failing",
    "started_late",
    "finished_late",
    "notify",
    "file",
    "prune",
    "paused",
    "calendar",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of problems, the most severe one first."""


@dataclass(frozen=True)
class Thresholds:
    """The limits of what is healthy; None: no limit."""

    max_dead: int = 0
    within: timedelta = timedelta(hours=1)
    max_tick_age: timedelta = timedelta(minutes=5)
    max_dead_total: int | None = None
    max_failing: int = 0
    max_streak: int | None = None
    max_paused: timedelta = timedelta(days=7)


@dataclass(frozen=True)
class Problem:
    """Something that needs attention: its job and its run, if it has one, and the command that
    shows or fixes it.

    ``since`` is when it began, if that is known. ``held_up`` is the number of jobs that wait for it
    to be fixed. ``error_type`` is that of the runs to retry. ``owner`` is that of its job, or those
    of its jobs.
    """

    kind: Kind
    job_type: str | None
    what: str
    remedy: str
    run_id: int | None = None
    since: datetime | None = None
    held_up: int = 0
    error_type: str = ""
    owner: str = ""

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: the most severe kind, then what holds up most jobs, then the
        oldest.
        """
        return KINDS.index(self.kind), -self.held_up, self.since or LAST


def worst_first(problems: Iterable[Problem], jobs: Iterable[JobHealth] = ()) -> list[Problem]:
    """Return ``problems`` in the order in which everything shows them, with the owners of their
    ``jobs``.
    """
    owners = {job.job_type: job.owner for job in jobs}
    named = [
        replace(problem, owner=problem.owner or owners.get(problem.job_type or "", ""))
        for problem in problems
    ]
    return sorted(named, key=lambda problem: problem.rank)


@dataclass(frozen=True)
class Deaths:
    """Runs of a job that died: the type of error, how many, the latest one with its error, and the
    jobs that wait for them.
    """

    job_type: str
    error_type: str
    runs: int
    run_id: int | None
    error: str
    changed: str | None
    since: datetime | None = None
    waits: Sequence[str] = ()
    owner: str = ""


def deaths(
    found: Iterable[Deaths], since: str, within: str = "", of_type: bool = False
) -> Iterator[Problem]:
    """Yield a problem for each job of which runs died, and one for many jobs with one type of
    error: they probably have one cause. Those of most runs come first.

    ``of_type``: what is to be retried are only the runs with this type of error.
    """
    by_type: defaultdict[str, list[Deaths]] = defaultdict(list)
    for each in found:
        by_type[each.error_type].append(each)
    problems: list[tuple[int, Problem]] = []
    for error_type, group in by_type.items():
        names = list(dict.fromkeys(each.job_type for each in group))
        if error_type and len(names) >= MIN_JOBS_OF_ONE_CAUSE:
            problems.append(_one_cause(group, names, since))
        else:
            problems += [_deaths_of_job(each, since, within, of_type) for each in group]
    problems.sort(key=lambda problem: -problem[0])
    yield from (problem for _, problem in problems)


def _one_cause(group: Sequence[Deaths], names: Sequence[str], since: str) -> tuple[int, Problem]:
    first, runs = group[0], sum(each.runs for each in group)
    changed = f"; {first.job_type} {first.changed}" if first.changed else ""
    listed = join_first(names, MAX_NAMES)
    problem = Problem(
        "dead",
        None,
        f"{runs:,} runs of {len(names):,} jobs died: {first.error}{changed} ({listed})",
        show_and_retry(
            first.run_id, f"--dead --error-type {shlex.quote(first.error_type)} --since {since}"
        ),
        since=min((each.since for each in group if each.since), default=None),
        held_up=sum(len(each.waits) for each in group),
        error_type=first.error_type,
        owner=join_first(sorted({each.owner for each in group if each.owner}), MAX_NAMES),
    )
    return runs, problem


def _deaths_of_job(each: Deaths, since: str, within: str, of_type: bool) -> tuple[int, Problem]:
    name, error_type, which = each.job_type, each.error_type if of_type else "", None
    what = f"{name}: {count(each.runs, 'run')} died{within}"
    what += f": {each.error}" if each.error else ""
    what += f"; {each.changed}" if each.changed else ""
    what += f"; holds up {join_first(each.waits, MAX_NAMES)}" if each.waits else ""
    if each.runs > 1:
        type_option = f" --error-type {shlex.quote(error_type)}" if error_type else ""
        which = f"--dead --job {name}{type_option} --since {since}"
    remedy, run = show_and_retry(each.run_id, which), each.run_id if each.runs == 1 else None
    waits = len(each.waits)
    problem = Problem("dead", name, what, remedy, run, each.since, waits, error_type, each.owner)
    return each.runs, problem


def show_and_retry(run: int | None, which: str | None = None) -> str:
    """Return the commands that show a run, and retry it or ``which`` runs."""
    return f"yamlsched show {run}; then yamlsched retry {which or run}"
