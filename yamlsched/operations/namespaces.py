"""The health of all namespaces of a database, such as one for each host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from yamlsched.operations.health import Health, Problem, Thresholds, problems, read
from yamlsched.store import history


@dataclass(frozen=True)
class NamespaceHealth:
    """The health of a namespace, and what needs attention in it."""

    health: Health
    problems: list[Problem]

    @property
    def jobs(self) -> int:
        """The number of jobs that the file in force has."""
        return sum(job.retired_at is None for job in self.health.jobs)

    @property
    def open_runs(self) -> int:
        return sum(job.queued + job.running + job.failed for job in self.health.jobs)

    @property
    def is_in_use(self) -> bool:
        """Return whether the namespace has jobs, unfinished work, or a host that presents a file."""
        health = self.health
        is_presented = any(file.presented_by for file in health.files) or bool(health.refused)
        return bool(self.jobs or self.open_runs or health.in_doubt_counts or is_presented)

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, worst first: problems of the whole namespace, then the number of problems, then the name."""
        of_namespace = sum(problem.job_type is None for problem in self.problems)
        return -min(of_namespace, 1), -len(self.problems), self.health.namespace


def read_all(
    connection: psycopg.Connection[Any], thresholds: Thresholds, limit: int | None = None
) -> tuple[list[NamespaceHealth], list[str]]:
    """Return the namespaces that are in use, worst first, and the names of the others; of the first ``limit``."""
    found = []
    for namespace in history.namespaces(connection)[:limit]:
        now = read(connection, namespace, thresholds.within)
        found.append(NamespaceHealth(now, problems(now, thresholds)))
    in_use = sorted((one for one in found if one.is_in_use), key=lambda one: one.rank)
    return in_use, [one.health.namespace for one in found if not one.is_in_use]
