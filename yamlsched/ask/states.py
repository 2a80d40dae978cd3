"""The states of all jobs of a namespace in a few columns: to count the jobs, and to choose those to read more of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import fetch_grouped, load

LAST = datetime.max.replace(tzinfo=UTC)


class JobState(NamedTuple):
    """A job in a few columns: enough to count the jobs, and to choose those of which ``JobHealth`` is read."""

    id: int
    job_type: str
    state: str
    queued: int
    running: int
    failed: int
    failing: int
    oldest_due_at: datetime | None
    overdue_since: datetime | None
    dead_within: int  # with calls of on_dead
    dead_last_hour: int
    dead_last_day: int
    dead_calls_last_day: int
    is_suspect: bool  # a check may report the job, unless all jobs have a limit for failing runs or streaks
    text: str  # what a search looks at: its name, description, owner and tags

    @property
    def is_present(self) -> bool:
        """Whether the job is not retired, or has unfinished runs."""
        return self.state != "retired" or self.queued + self.running + self.failed > 0


class JobTotals(NamedTuple):
    """The jobs of a namespace that are not retired, and the runs of all its jobs."""

    jobs: int = 0
    queued: int = 0
    running: int = 0
    failed: int = 0
    failing: int = 0
    dead_last_hour: int = 0
    dead_last_day: int = 0
    dead_calls_last_day: int = 0  # calls of on_dead, which are not among the dead
    oldest_due_at: datetime | None = None


def states(
    connection: psycopg.Connection[Any], namespaces: Sequence[str], within: timedelta
) -> defaultdict[str, list[JobState]]:
    """Return every job of each of ``namespaces`` by name; ``dead_within`` counts runs of the last ``within``."""
    parameters = {"namespaces": list(namespaces), "within": within}
    return fetch_grouped(connection, JobState, load("health")["states"], parameters)


def totals(jobs: Sequence[JobState]) -> JobTotals:
    """Return the jobs of a namespace in a few numbers."""
    summed = {name: sum([getattr(job, name) for job in jobs]) for name in JobTotals._fields[1:-1]}
    number = sum(job.state != "retired" for job in jobs)
    return JobTotals(
        number, **summed, oldest_due_at=min((at for job in jobs if (at := job.oldest_due_at)), default=None)
    )


def suspects(jobs: Iterable[JobState]) -> list[int]:
    """Return the ids of the jobs that a check may report: those with dead runs first, then the longest overdue."""
    suspects = [job for job in jobs if job.is_suspect]
    suspects.sort(key=lambda job: (not job.dead_within, job.overdue_since or LAST))
    return [job.id for job in suspects]
