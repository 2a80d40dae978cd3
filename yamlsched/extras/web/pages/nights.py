"""``/nights``: jobs by their last 30 days, or by their last 30 runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from psycopg import Connection

from yamlsched import durations
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.db.query import execute, fetch
from yamlsched.extras.web.ask import timeline
from yamlsched.extras.web.ask.timeline import DayOfJob
from yamlsched.extras.web.visit import Page, Visit, finder
from yamlsched.runs.lifecycle import error_text
from yamlsched.timetable.times import bounds
from yamlsched.timetable.zones import zone_or_utc

STRIP_DAYS = 14


@dataclass(frozen=True)
class Day:
    """A local date of a job. ``state`` is the worst of: dead, retrying, retried, ok, cancelled,
    skipped, none.
    """

    date: date
    state: str
    text: str
    reasons: Sequence[str] = ()


def strips(
    connection: Connection[Any],
    namespace: str,
    jobs: Sequence[tuple[str, str]],
    now: datetime,
    number: int = STRIP_DAYS,
) -> dict[str, list[Day]]:
    """Return the last ``number`` days of each job, given by name and time zone, oldest first; the
    last one is today.
    """
    days = {
        timezone: _last_days(timezone, now, number)
        for timezone in {timezone for _, timezone in jobs}
    }
    zones, by_job = dict(jobs), {name: list[Day]() for name, _ in jobs}
    for row in timeline.day_rows(connection, namespace, zones, days):
        day, _, _ = days[zones[row.job_type]][row.nth]
        by_job[row.job_type].append(_day(day, row))
    return by_job


class LatestRun(NamedTuple):
    """One of the newest runs of a job that have ended."""

    job_type: str
    id: int
    status: str
    attempts: int
    started_at: datetime | None
    finished_at: datetime
    error_type: str | None
    last_error: str | None

    @property
    def state(self) -> str:
        """The state of a day with this run alone."""
        if self.status != "succeeded":
            return self.status
        return "retried" if self.attempts > 1 else "ok"

    @property
    def took(self) -> timedelta | None:
        if self.started_at is None or self.status == "cancelled":
            return None
        return self.finished_at - self.started_at

    @property
    def error(self) -> str:
        return error_text(self.error_type, self.last_error) if self.status == "dead" else ""


def latest_runs(
    connection: Connection[Any], namespace: str, jobs: Sequence[str], limit: int
) -> dict[str, list[LatestRun]]:
    """Return the newest ``limit`` runs of each job that have ended, oldest first."""
    runs: dict[str, list[LatestRun]] = {name: [] for name in jobs}
    parameters = {"namespace": namespace, "jobs": list(jobs), "limit": limit}
    for run in fetch(connection, LatestRun, "timeline.latest", **parameters):
        runs[run.job_type].insert(0, run)
    return runs


def summary(days: Sequence[Day]) -> str:
    """Return the days in words: those that need a look one by one, the others counted."""
    notable = [
        f"{day.date:%-d %b} {day.text}"
        for day in days
        if day.state in ("dead", "retrying", "skipped")
    ]
    good = sum(day.state in ("ok", "retried") for day in days)
    return "; ".join([f"{len(days)} days: {good} with successes only", *notable])


def skipped_by_pause(days: Sequence[Day]) -> str:
    """Return a note if the newest slots among ``days`` were skipped by a pause, and nothing ran on
    that day.
    """
    newest = next((day for day in reversed(days) if day.state != "none"), None)
    if newest is None or newest.state != "skipped" or "paused" not in newest.reasons:
        return ""
    return f"the latest slots, of {newest.date}, were skipped: the job was paused"


def _last_days(timezone: str, now: datetime, number: int) -> list[tuple[date, datetime, datetime]]:
    """Return local dates up to today, each with its start and that of the next."""
    where = zone_or_utc(timezone)
    today = now.astimezone(where).date()
    dates = [today - timedelta(days=ago) for ago in range(number - 1, -2, -1)]
    starts = [bounds(day, where)[0] for day in dates]
    return list(zip(dates, starts, starts[1:], strict=False))


def _day(day: date, row: DayOfJob) -> Day:
    parts = [
        f"{number} {what}"
        for number, what in (
            (row.dead, "dead"),
            (row.retrying, "to be retried"),
            (row.retried, "succeeded after a retry"),
        )
        if number
    ]
    if row.succeeded and not row.retried:
        parts.append("succeeded")
    if row.cancelled and not row.succeeded:
        parts.append("cancelled")
    if row.reasons:
        parts.append(f"slots skipped ({', '.join(row.reasons)})")
    return Day(day, _state(row), ", ".join(parts) or "no runs", row.reasons)


def _state(row: DayOfJob) -> str:
    if row.dead:
        return "dead"
    if row.retrying:
        return "retrying"
    if row.retried:
        return "retried"
    if row.succeeded:
        return "ok"
    if row.cancelled:
        return "cancelled"
    return "skipped" if row.reasons else "none"


PAGE_JOBS = 50
NIGHTS = 30
MAX_FAILED = 1_000
"""Dead runs of a job that are counted, and unfinished ones."""
MAX_ERROR_CHARS = 80
"""Of the error of a mark, of which a page has hundreds."""


class Mark(NamedTuple):
    """A day or a run: its state, that in words, and the page about it."""

    state: str
    text: str
    href: str


@dataclass(frozen=True)
class Nights:
    """The page. ``failures`` counts the runs of each job that died, pruned ones too, or fail."""

    rows: Sequence[tuple[Any, Sequence[Mark]]]
    heads: Sequence[str]  # of the columns
    failures: Counter[str]
    query: dict[str, str]
    jobs: int
    number: int
    pages: int

    def but(self, **changed: object) -> dict[str, object]:
        """Return the parameters of the URL with some changed."""
        return {**self.query, **changed}


def show(visit: Visit) -> Nights:
    query = {
        "q": visit.text("q"),
        "by": visit.choice("by", ("nights", "runs"), "nights"),
        "only": visit.choice("only", ("failing",), ""),
        "sort": visit.choice("sort", ("name", "worst"), "worst"),
    }
    finds, since = finder(query["q"]), visit.now - timedelta(days=NIGHTS)
    span = {"namespace": visit.namespace, "since": since, "limit": MAX_FAILED}
    failures = Counter[str](dict(execute(visit.connection, "timeline.failed", **span).fetchall()))
    jobs = [
        job
        for job in all_jobs(visit.connection, visit.namespace)
        if job.retired_at is None
        and finds(job.job_type, job.owner, *job.tags)
        and (not query["only"] or failures[job.job_type])
    ]
    if query["sort"] == "worst":
        jobs.sort(key=lambda job: -failures[job.job_type])
    listed, number, pages = visit.page_of(jobs, PAGE_JOBS)
    marks = _nights(visit, listed) if query["by"] == "nights" else _runs(visit, listed)
    first = next(iter(marks.values()), ())
    heads = [mark.text.partition(":")[0] for mark in first] if query["by"] == "nights" else []
    rows = [(job, marks[job.job_type]) for job in listed]
    return Nights(rows, heads, failures, query, len(jobs), number, pages)


def _nights(visit: Visit, jobs: Sequence[Any]) -> dict[str, list[Mark]]:
    zones = [(job.job_type, job.timezone) for job in jobs]
    days = strips(visit.connection, visit.namespace, zones, visit.now, NIGHTS)
    return {
        name: [
            Mark(
                day.state,
                f"{day.date:%a %-d %b}: {day.text}",
                visit.url("why", job=name, at=day.date),
            )
            for day in of_job
        ]
        for name, of_job in days.items()
    }


def _runs(visit: Visit, jobs: Sequence[Any]) -> dict[str, list[Mark]]:
    latest = latest_runs(visit.connection, visit.namespace, [job.job_type for job in jobs], NIGHTS)
    marks = {}
    for name, runs in latest.items():
        marks[name] = [Mark("none", "no earlier run is kept", "")] * (NIGHTS - len(runs))
        for run in runs:
            took = f", took {durations.show(run.took)}" if run.took is not None else ""
            error = f": {run.error[:MAX_ERROR_CHARS]}" if run.error else ""
            text = (
                f"run {run.id}: {run.status} {durations.between(run.finished_at, visit.now)}"
                f" ago{took}{error}"
            )
            marks[name].append(Mark(run.state, text, visit.url("runs", run.id)))
    return marks


PAGE = Page("/nights", "nights.html", show)
