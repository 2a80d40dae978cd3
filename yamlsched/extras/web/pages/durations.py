"""``/durations``: how long the runs of each job take, the slowest of the week, and what became
slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamlsched.db.query import fetch, load
from yamlsched.extras.web.visit import Page, Visit, finder

WEEK = timedelta(days=7)
PAGE_JOBS = 50
MIN_RUNS = 3
"""So many runs of both spans tell whether a job became slower."""
SORTS: dict[str, Callable[[Any], Any]] = {
    "slower": lambda row: -row[2],
    "longest": lambda row: -row[0].longest,
    "usual": lambda row: -row[0].usual,
    "name": lambda row: 0,
}


MAX_TIMED_RUNS = 20
"""Of each job, the newest runs of a span whose durations are read."""


@dataclass(frozen=True)
class Durations:
    """How long the successful attempts of a job took: the median, what 95 % stay within, the
    longest, the last.
    """

    job_type: str
    timezone: str
    runs: int
    usual: timedelta
    p95: timedelta
    longest: timedelta
    last: timedelta
    longest_id: int


@dataclass(frozen=True)
class DurationsPage:
    """The page: the jobs with what is usual in the week before, and by which factor they became
    slower.
    """

    rows: Sequence[tuple[Durations, timedelta | None, float]]
    matching: int
    number: int
    pages: int
    text: str
    sort: str
    slower = 1.5  # times as long
    max_runs = MAX_TIMED_RUNS


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
    rows = fetch(visit.connection, Durations, load("timeline")["durations"], values)
    return {row.job_type: row for row in rows}


def show(visit: Visit) -> DurationsPage:
    text, sort = visit.text("q"), visit.choice("sort", tuple(SORTS), "slower")
    finds, before = finder(text), of_week(visit, ago=1)
    rows = []
    for name, now in of_week(visit).items():
        old = before.get(name)
        is_known = old is not None and min(old.runs, now.runs) >= MIN_RUNS
        factor = now.usual / old.usual if old is not None and is_known and old.usual else 0.0
        if finds(name):
            rows.append((now, old.usual if old else None, factor))
    rows.sort(key=SORTS[sort])
    listed, number, pages = visit.page_of(rows, PAGE_JOBS)
    return DurationsPage(listed, len(rows), number, pages, text, sort)


PAGE = Page("/durations", "durations.html", show, title="Durations")
