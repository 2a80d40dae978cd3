"""What is left of pruned runs: a row for each job and day, with a histogram of durations.

A run belongs to the local day of its slot, or of its end if it has none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from yamlsched.timetable.zones import zone_or_utc

BOUNDS = tuple(2.0**power for power in range(-1, 14))
"""Seconds: the buckets of a histogram are below 0.5, below 1, ..., below 8192, and above."""
BUCKETS = len(BOUNDS) + 1


class DeletedRun(NamedTuple):
    """A run that was pruned. ``at`` is its slot, or its end; ``took`` is of the latest attempt."""

    definition_id: int
    timezone: str
    at: datetime
    status: str
    failed_at: datetime | None
    finished_at: datetime
    took: timedelta | None


@dataclass
class JobDay:
    """How runs of a job ended on a day. ``seconds``, ``longest`` and ``histogram`` are of the
    successful ones.
    """

    definition_id: int
    day: date
    succeeded: int = 0
    retried: int = 0  # of these, after a failed attempt
    dead: int = 0
    cancelled: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    succeeded_at: datetime | None = None  # the latest end of a success
    histogram: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, run: DeletedRun) -> None:
        """Add a run of this day. If it has no slot, and failed on an earlier day, that is not
        found by day either before it is pruned.
        """
        setattr(self, run.status, getattr(self, run.status) + 1)
        if run.status != "succeeded":
            return
        self.succeeded_at = max(self.succeeded_at or run.finished_at, run.finished_at)
        self.retried += run.failed_at is not None and local_date(run, run.failed_at) >= self.day
        if run.took is not None:
            seconds = run.took.total_seconds()
            self.seconds += seconds
            self.longest = max(self.longest, seconds)
            self.histogram[bucket(seconds)] += 1


def days(runs: Iterable[DeletedRun]) -> list[JobDay]:
    """Return what is left of runs that were deleted."""
    found: dict[tuple[int, date], JobDay] = {}
    for run in runs:
        key = (run.definition_id, local_date(run, run.at))
        found.setdefault(key, JobDay(*key)).add(run)
    return list(found.values())


def local_date(run: DeletedRun, at: datetime) -> date:
    return at.astimezone(zone_or_utc(run.timezone)).date()


def bucket(seconds: float) -> int:
    """Return the place of a duration in a histogram.

    >>> bucket(0.2), bucket(1), bucket(90), bucket(1e6)
    (0, 2, 8, 15)
    """
    return bisect_right(BOUNDS, seconds)


def quantile(histogram: Sequence[int], share: float) -> timedelta:
    """Return a duration from the bucket of a histogram that has the run of this rank: the middle
    one for 0.5. In a bucket of two bounds it is the geometric mean, which is at most 1.42 times
    too long or too short.

    >>> quantile([0] * 8 + [5] + [0] * 7, 0.5).total_seconds()
    90.509668
    """
    rank = share * sum(histogram)
    place = next(n for n, runs in enumerate(accumulate(histogram)) if runs and runs >= rank)
    low, high = (BOUNDS[0] / 2, *BOUNDS)[place], (*BOUNDS, BOUNDS[-1] * 2)[place]
    return timedelta(seconds=(low * high) ** 0.5)
