"""The states of all jobs of a namespace in a few columns: to count the jobs, and to choose those to
read more of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import fetch_grouped, load
from yamlsched.durations import between
from yamlsched.text import join_first

LAST = datetime.max.replace(tzinfo=UTC)
MAX_NAMES = 3
HEALTHY_STATES = ("ok", "running", "new", "ended")


class HeldUp(NamedTuple):
    """Runs of a job that wait, directly or through others, for a run that is dead or cancelled."""

    job_type: str
    upstream: str
    run_id: int
    status: str
    ended_at: datetime
    runs: int

    def because(self, now: datetime) -> str:
        """Return what holds the job up: "extract: run 118 died 2h ago"."""
        ended = "died" if self.status == "dead" else "was cancelled"
        return f"{self.upstream}: run {self.run_id} {ended} {between(self.ended_at, now)} ago"


def by_run(held_up: Iterable[HeldUp]) -> list[list[HeldUp]]:
    """Return the jobs that each dead or cancelled run holds up."""
    of_run: defaultdict[int, list[HeldUp]] = defaultdict(list)
    for each in held_up:
        of_run[each.run_id].append(each)
    return list(of_run.values())


def held_up_in_words(held_up: Sequence[HeldUp], now: datetime) -> str:
    """Return which jobs one run holds up: "load, report (5 runs) by extract: run 118
    died 2h ago".
    """
    names = [
        each.job_type if each.runs == 1 else f"{each.job_type} ({each.runs} runs)"
        for each in held_up
    ]
    return f"{join_first(names, MAX_NAMES)} by {held_up[0].because(now)}"


class JobState(NamedTuple):
    """A job in a few columns: enough to count the jobs, and to choose those of which ``JobHealth``
    is read.
    """

    id: int
    job_type: str
    state: str
    queued: int
    running: int
    failed: int
    failing: int  # its unfinished runs that fail again and again
    oldest_due_at: datetime | None
    overdue_since: datetime | None
    dead_within: int  # with calls of on_dead
    dead_last_hour: int
    dead_last_day: int
    dead_calls_last_day: int
    is_suspect: bool  # a check may report the job, unless all jobs have a limit for streaks
    text: str  # what a search looks at: its name, description, owner and tags
    held_up: Sequence[HeldUp] = ()

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
    """Return every job of each of ``namespaces`` by name; ``dead_within`` counts runs of the last
    ``within``.
    """
    parameters = {"namespaces": list(namespaces), "within": within}
    jobs = fetch_grouped(connection, JobState, load("health")["states"], parameters)
    for namespace, rows in fetch_grouped(
        connection, HeldUp, load("health")["held_up"], parameters
    ).items():
        of_job: defaultdict[str, list[HeldUp]] = defaultdict(list)
        for row in rows:
            of_job[row.job_type].append(row)
        jobs[namespace] = [
            (
                job._replace(held_up=of_job[job.job_type], state=state_of(job.state, True))
                if job.job_type in of_job
                else job
            )
            for job in jobs[namespace]
        ]
    return jobs


def state_of(state: str, is_held_up: bool) -> str:
    """Return the state of a job: that of its row, unless that is less severe than that the job is
    held up.
    """
    return "held_up" if is_held_up and state in (*HEALTHY_STATES, "retrying") else state


def totals(jobs: Sequence[JobState]) -> JobTotals:
    """Return the jobs of a namespace in a few numbers."""
    summed = {name: sum([getattr(job, name) for job in jobs]) for name in JobTotals._fields[1:-1]}
    number = sum(job.state != "retired" for job in jobs)
    return JobTotals(
        number,
        **summed,
        oldest_due_at=min((at for job in jobs if (at := job.oldest_due_at)), default=None),
    )


def suspects(jobs: Iterable[JobState]) -> list[int]:
    """Return the ids of the jobs that a check may report: those with dead runs first, then the
    longest overdue.
    """
    suspects = [job for job in jobs if job.is_suspect]
    suspects.sort(key=lambda job: (not job.dead_within, job.overdue_since or LAST))
    return [job.id for job in suspects]


def to_list(jobs: Sequence[JobState], most: int) -> list[int] | None:
    """Return the ids of the jobs that a check may report, and of those in none of
    ``HEALTHY_STATES``; None, which is all, if there are at most ``most``.
    """
    present = [job for job in jobs if job.is_present]
    unhealthy = [job.id for job in present if job.state not in HEALTHY_STATES]
    return None if len(present) <= most else [*suspects(jobs), *unhealthy]
