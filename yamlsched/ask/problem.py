"""A problem that needs attention: how severe it is, and the command that helps. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from yamlsched.ask.health import LAST, JobHealth
from yamlsched.ask.queues import MAX_NAMES
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


def one_cause(error_type: str, jobs: Sequence[str], runs: int, error: str, since: str) -> Problem:
    """Return the problem that runs of many ``jobs`` died of one type of error. Its remedy is only
    the selection of the runs.
    """
    names = join_first(jobs, MAX_NAMES)
    what = f"{runs:,} runs of {len(jobs):,} jobs died: {error} ({names})"
    which = f"--dead --error-type {shlex.quote(error_type)} --since {since}"
    return Problem("dead", None, what, which, error_type=error_type)


def show_and_retry(run: int | None, which: str | None = None) -> str:
    """Return the commands that show a run, and retry it or ``which`` runs."""
    return f"yamlsched show {run}; then yamlsched retry {which or run}"
