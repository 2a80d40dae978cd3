"""What waits: in queues and for whom, and jobs that a dead run holds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from yamlsched.durations import between
from yamlsched.runs.lifecycle import one_line
from yamlsched.show.terminal import count
from yamlsched.text import join_first

MAX_NAMES = 3


@dataclass(frozen=True)
class HeldUp:
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


def waiting_jobs(held_up: Iterable[HeldUp]) -> dict[str, list[str]]:
    """Return the jobs that runs of each upstream job hold up."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for each in held_up:
        if each.job_type not in names[each.upstream]:
            names[each.upstream].append(each.job_type)
    return names


def held_up_in_words(held_up: Sequence[HeldUp], now: datetime) -> str:
    """Return which jobs one run holds up: "load, report (5 runs) by extract: run 118
    died 2h ago".
    """
    names = [
        each.job_type if each.runs == 1 else f"{each.job_type} ({each.runs} runs)"
        for each in held_up
    ]
    return f"{join_first(names, MAX_NAMES)} by {held_up[0].because(now)}"


@dataclass(frozen=True)
class QueueHealth:
    """How much there is to do in a queue, and who does it: see the view queue_load.

    ``due`` and ``executing`` are counted to some thousands. ``failed_starts`` counts those in a
    row, and ``error`` is that of the latest one.
    """

    queue: str
    due: int
    executing: int
    oldest_due_at: datetime | None
    live: int
    starting: int
    leaving: int
    failed_starts: int
    next_start_at: datetime | None
    error: str | None

    @property
    def starts_in_words(self) -> str:
        """How many starts of workers have failed in a row, and why; "" if none has."""
        if not self.failed_starts:
            return ""
        starts = count(self.failed_starts, "start")
        error = f": {one_line(self.error)}" if self.error else ""
        return f"{starts} of workers failed in a row{error}"


@dataclass(frozen=True)
class UnservedQueue:
    """A queue of enabled jobs that nobody serves, and who did last, if it is known."""

    queue: str
    served_by: str | None  # host:path
    served_at: datetime | None
    is_on_demand: bool  # its workers are there only while runs wait

    def in_words(self, now: datetime) -> str:
        if self.served_at is None:
            return f"no worker serves queue {self.queue}"
        return (
            f"no worker has served queue {self.queue} for {between(self.served_at, now)};"
            f" {self.served_by} served it last"
        )
