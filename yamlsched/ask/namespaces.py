"""The health of whole namespaces: as one document, and of all of a database, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from yamlsched.ask import health, runs
from yamlsched.ask.attention import problems
from yamlsched.ask.health import Health
from yamlsched.ask.problem import KINDS, Problem, Thresholds


def summary(health: Health, thresholds: Thresholds) -> dict[str, Any]:
    """Return everything about ``health`` as one document."""
    reported = problems(health, thresholds)
    waits = ("person", "retry")
    return {
        **vars(health),
        "healthy": not reported,
        "problems": reported,
        "file_in_use": health.file_in_use,
        "files_not_in_use": health.other_files,
        "queue": health.queue,
        "in_doubt_counts": {each: health.effects_in_doubt(each) for each in waits},
    }


@dataclass(frozen=True)
class NamespaceHealth:
    """The health of a namespace, and what needs attention in it."""

    health: Health
    problems: list[Problem]

    @property
    def jobs(self) -> int:
        """The number of jobs that the file in use has."""
        return int(self.health.queue["jobs"])

    @property
    def open_runs(self) -> int:
        return sum(self.health.queue[name] for name in ("queued", "running", "failed"))

    @property
    def is_in_use(self) -> bool:
        """Return whether the namespace has jobs, unfinished work, or a place that ticks."""
        now = self.health
        has_places = any(file.places for file in now.files) or bool(now.refused)
        return bool(self.jobs or self.open_runs or now.in_doubt_counts or has_places)

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: the most severe problem, then the number of problems, then the
        name.
        """
        worst = KINDS.index(self.problems[0].kind) if self.problems else len(KINDS)
        return worst, -len(self.problems), self.health.namespace


def read_all(
    connection: psycopg.Connection[Any], thresholds: Thresholds
) -> tuple[list[NamespaceHealth], list[str]]:
    """Return the namespaces that are in use, worst first, and the names of the others."""
    names = runs.namespaces(connection)
    namespaces = [
        NamespaceHealth(now, problems(now, thresholds))
        for now in health.read_all(connection, names, thresholds.within)
    ]
    in_use = sorted(
        (state for state in namespaces if state.is_in_use), key=lambda state: state.rank
    )
    return in_use, [state.health.namespace for state in namespaces if not state.is_in_use]
