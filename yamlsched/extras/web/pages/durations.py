"""``/durations``: how long the runs of each job take, the slowest of the week, and what became
slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from yamlsched.ask import job_days
from yamlsched.db.query import fetch
from yamlsched.extras.web.visit import Page, Visit, finder

WEEK = timedelta(days=7)
PAGE_JOBS = 50
MIN_RUNS = 3
"""So many runs of both spans tell whether a job became slower."""
MIN_ESTIMATE = 3.0
"""A factor of estimates is shown from here on: each may be 1.42 times too long or too short."""
SORTS: dict[str, Callable[[Any], Any]] = {
    "slower": lambda row: -row[2],
    "longest": lambda row: -row[0].longest,
    "usual": lambda row: -row[0].usual,
    "name": lambda row: 0,
}


TICKS = [timedelta(seconds=each) for each in (0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 360_000)]
MAX_TIMED_RUNS = 20
"""Of each job, the newest runs of a span whose durations are read."""


@dataclass(frozen=True)
class Durations:
    """How long the successful attempts of a job took: the median, what 95 % stay within, the
    longest, the last. If it is an estimate, runs of the span were pruned, which their histogram
    stands for; of these, no longest and no last one is known as a run.
    """

    job_type: str
    timezone: str
    runs: int
    usual: timedelta
    p95: timedelta
    longest: timedelta
    last: timedelta | None
    longest_id: int | None
    is_estimate: bool = False


class TimedRuns(NamedTuple):
    """What is known of a job: the newest runs of a span, newest first, and histograms of those that
    were pruned.
    """

    job_type: str
    timezone: str
    took: list[timedelta]
    ids: list[int]
    examined: int
    histograms: list[list[int]]
    longest: timedelta | None

    def durations(self) -> Durations:
        took, last = sorted(self.took), next(iter(self.took), None)
        longest = took[-1] if took else None
        run = self.ids[self.took.index(longest)] if longest is not None else None
        name = (self.job_type, self.timezone)
        if longest is not None and (self.longest is None or self.examined >= MAX_TIMED_RUNS):
            usual, p95 = _quantile(took, 0.5), _quantile(took, 0.95)
            return Durations(*name, len(took), usual, p95, longest, last, run)
        places = [job_days.bucket(each.total_seconds()) for each in took]
        every = [
            sum(runs) + places.count(place)
            for place, runs in enumerate(zip(*self.histograms, strict=True))
        ]
        assert self.longest is not None
        if longest is None or self.longest > longest:
            longest, run = self.longest, None
        usual, p95 = (min(job_days.quantile(every, share), longest) for share in (0.5, 0.95))
        return Durations(*name, sum(every), usual, p95, longest, last, run, True)


def _quantile(took: Sequence[timedelta], share: float) -> timedelta:
    """Return the value of a rank in a sorted list, between two of them if the rank is."""
    place, part = divmod(share * (len(took) - 1), 1)
    low, high = took[int(place)], took[min(int(place) + 1, len(took) - 1)]
    return low + (high - low) * part


def scale(rows: Collection[Durations]) -> list[timedelta]:
    """Return the lines of the logarithmic scale on which all of these durations are, with its
    ends.
    """
    least = min((row.usual for row in rows), default=TICKS[0])
    most = max((row.longest for row in rows), default=TICKS[-1])
    first = min(max(sum(tick < least for tick in TICKS) - 1, 0), len(TICKS) - 2)
    return TICKS[first : max(sum(tick < most for tick in TICKS), first + 1) + 1]


@dataclass(frozen=True)
class DurationsPage:
    """The page: the jobs with what is usual in the week before, and by which factor they became
    slower.
    """

    rows: Sequence[tuple[Durations, Durations | None, float]]
    ticks: Sequence[timedelta]
    has_before: bool
    matching: int
    number: int
    pages: int
    text: str
    sort: str
    slower = 1.5  # times as long
    max_runs = MAX_TIMED_RUNS

    def place(self, value: timedelta) -> float:
        """Return where a duration is on the scale, in percent."""
        part = math.log(max(value / self.ticks[0], 1)) / math.log(self.ticks[-1] / self.ticks[0])
        return round(100 * min(part, 1), 1)


def of_week(visit: Visit, jobs: Sequence[str] | None = None, ago: int = 0) -> dict[str, Durations]:
    """Return the durations of ``jobs``, or of all, in the last week, or so many weeks ``ago``. Jobs
    without a successful run are left out.
    """
    until = visit.now - ago * WEEK
    values: dict[str, Any] = {
        "namespace": visit.namespace,
        "jobs": jobs,
        "since": until - WEEK,
        "until": until,
    }
    values["limit"] = MAX_TIMED_RUNS
    rows = fetch(visit.connection, TimedRuns, "timeline.durations", **values)
    return {row.job_type: row.durations() for row in rows}


def show(visit: Visit) -> DurationsPage:
    text, sort = visit.text("q"), visit.choice("sort", tuple(SORTS), "slower")
    finds, week, before = finder(text), of_week(visit), of_week(visit, ago=1)
    rows = []
    for name, now in week.items():
        old = before.get(name)
        is_known = old is not None and min(old.runs, now.runs) >= MIN_RUNS
        factor = now.usual / old.usual if old is not None and is_known and old.usual else 0.0
        if old is not None and (old.is_estimate or now.is_estimate) and factor < MIN_ESTIMATE:
            factor = 0.0
        if finds(name):
            rows.append((now, old, factor))
    rows.sort(key=SORTS[sort])
    listed, number, pages = visit.page_of(rows, PAGE_JOBS)
    return DurationsPage(
        listed, scale(week.values()), bool(before), len(rows), number, pages, text, sort
    )


PAGE = Page("/durations", "durations.html", show)
