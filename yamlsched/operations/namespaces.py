"""The health of all namespaces of a database, such as one for each host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from yamlsched.operations import health
from yamlsched.operations.attention import Problem, Thresholds, problems
from yamlsched.operations.health import Health
from yamlsched.store import history


@dataclass(frozen=True)
class NamespaceHealth:
    """The health of a namespace, and what needs attention in it."""

    health: Health
    problems: list[Problem]

    @property
    def jobs(self) -> int:
        """The number of jobs that the file in force has."""
        return self.health.totals.jobs

    @property
    def open_runs(self) -> int:
        totals = self.health.totals
        return totals.queued + totals.running + totals.failed

    @property
    def is_in_use(self) -> bool:
        """Return whether the namespace has jobs, unfinished work, or a host that presents a file."""
        now = self.health
        is_presented = any(file.presented_by for file in now.files) or bool(now.refused)
        return bool(self.jobs or self.open_runs or now.in_doubt_counts or is_presented)

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: problems of the whole namespace, then the number of problems, then the name."""
        of_namespace = sum(problem.job_type is None for problem in self.problems)
        return -min(of_namespace, 1), -len(self.problems), self.health.namespace


def read_all(
    connection: psycopg.Connection[Any], thresholds: Thresholds, max_suspects: int | None = None
) -> tuple[list[NamespaceHealth], list[str]]:
    """Return the namespaces that are in use, worst first, and the names of the others.

    With ``max_suspects``, only the rows of so many jobs are read, of those with problems. ``thresholds`` must have no
    limits for all jobs then; see ``health.suspects``.
    """
    names = history.namespaces(connection)
    jobs = None
    if max_suspects is not None:
        jobs = health.suspects(connection, names, thresholds.within, max_suspects)
    read = health.read_all(connection, names, thresholds.within, jobs)
    found = [NamespaceHealth(now, problems(now, thresholds)) for now in read]
    in_use = sorted((one for one in found if one.is_in_use), key=lambda one: one.rank)
    return in_use, [one.health.namespace for one in found if not one.is_in_use]
