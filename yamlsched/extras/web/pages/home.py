"""``/``: what ``yamlsched status --check`` reports, then every job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from yamlsched import durations
from yamlsched.ask import health
from yamlsched.ask.attention import problems
from yamlsched.ask.failures import MAX_FAILED, MAX_OF_JOB
from yamlsched.ask.health import HEALTHY_STATES, Health, JobHealth
from yamlsched.ask.problem import Problem, Thresholds
from yamlsched.db.query import execute, fetch
from yamlsched.extras.web.pages.durations import Durations, of_week
from yamlsched.extras.web.pages.nights import Day, skipped_by_pause, strips, summary
from yamlsched.extras.web.visit import Page, Visit, finder

PAGE_JOBS = 50
"""Jobs on one page."""
MAX_UNFOLDED = 30
"""Of more jobs, the healthy ones are only counted, unless the list is filtered or ordered."""
EVERY = "all"
STATES = (
    *("stuck", "late", "dead", "failing", "held_up"),
    *("retrying", "paused", "running", "ok", "new", "ended", "disabled", "retired"),
)
ATTENTION = STATES[:5]
"""Jobs in these states are listed first."""


@dataclass(frozen=True)
class JobRow:
    """A job, and what explains its state."""

    job: JobHealth
    note: str
    days: Sequence[Day]
    summary: str
    durations: Durations | None

    @property
    def next_slot_at(self) -> datetime | None:
        return self.job.next_slot_at if self.job.enabled and self.job.retired_at is None else None


class Hour(NamedTuple):
    """How many runs ended in an hour, counted to a thousand; how many runs died, among the last
    thousands; and how many attempts failed, among the last thousand such runs of each job.
    """

    at: datetime
    runs: int
    dead: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Home:
    """The page. ``states`` counts the jobs whose text matches; ``matching`` are those of the whole
    filter, of which ``rows`` are one page, without ``healthy`` ones.
    """

    health: Health
    problems: Sequence[tuple[Problem, str]]  # with the page that shows what it is about
    states: Counter[str]
    jobs: int  # without retired ones
    text: str
    state: str
    matching: int
    number: int
    pages: int
    rows: Sequence[JobRow]
    sort: str
    healthy: int
    pulse: Sequence[Hour]  # of a list that is not filtered
    state_names = STATES
    max_problems = 30


def show(visit: Visit) -> Home:
    text, state = visit.text("q"), visit.choice("state", (*STATES, EVERY), "")
    thresholds = Thresholds()
    now = health.read(visit.connection, visit.namespace, thresholds.within)
    jobs, finds = now.jobs, finder(text)
    matching = [
        job
        for job in jobs
        if (job.state == state if state in STATES else job.state != "retired") and finds(job.text)
    ]
    number = len(matching)
    if number > MAX_UNFOLDED and not text and not state and "sort" not in visit.query:
        matching = [job for job in matching if job.state not in HEALTHY_STATES]
    matching.sort(
        key=lambda job: ATTENTION.index(job.state) if job.state in ATTENTION else len(ATTENTION)
    )
    sort = visit.choice("sort", ("state", "usual", "last"), "state")
    if sort != "state":
        all_took = of_week(visit)
        matching.sort(key=lambda job: -getattr(all_took.get(job.job_type), sort, timedelta(-1)))
    listed, page, pages = visit.page_of(matching, PAGE_JOBS)
    took = of_week(visit, [job.job_type for job in listed])
    days = strips(
        visit.connection, visit.namespace, [(job.job_type, job.timezone) for job in listed], now.now
    )
    return Home(
        health=now,
        problems=[
            (each, target(each, visit.url, thresholds)) for each in problems(now, thresholds)
        ],
        states=Counter(job.state for job in jobs if finds(job.text)),
        jobs=sum(job.state != "retired" for job in jobs),
        text=text,
        state=state,
        matching=number,
        healthy=number - len(matching),
        pulse=() if text or state else _pulse(visit),
        number=page,
        pages=pages,
        sort=sort,
        rows=[_row(job, now, days[job.job_type], took.get(job.job_type)) for job in listed],
    )


def _pulse(visit: Visit) -> list[Hour]:
    hours = fetch(visit.connection, Hour, "report.pulse", namespace=visit.namespace)
    recent = {"namespace": visit.namespace, "since": hours[0].at, "of_job": MAX_OF_JOB}
    recent |= {"definitions": None, "error_type": None, "limit": MAX_FAILED, "by_hour": True}
    failed = Counter[datetime]()
    for row in execute(visit.connection, "failures.attempts", **recent):
        failed[row.hour] += row.attempts
    dead = {row.at: row.runs for row in execute(visit.connection, "failures.by_hour", **recent)}
    return [hour._replace(dead=dead.get(hour.at, 0), failed=failed[hour.at]) for hour in hours]


def _row(job: JobHealth, now: Health, days: Sequence[Day], took: Durations | None) -> JobRow:
    note = health.note(job, now) or skipped_by_pause(days)
    return JobRow(job, note, days, summary(days), took)


def target(problem: Problem, url: Callable[..., str], thresholds: Thresholds) -> str:
    """Return the URL of the page that shows what a problem is about; "" if there is none."""
    if problem.run_id is not None:
        return url("runs", problem.run_id)
    match problem.kind:
        case "stuck":
            return url("runs", status="running")
        case "file" | "calendar":
            return url({"file": "files"}.get(problem.kind, problem.kind))
        case "tick" | "start":
            return url("workers")
        case "failing":
            return url("runs", job=problem.job_type, status="failed")
        case "late" | "skipped":
            return url("why", job=problem.job_type)
        case "dead":
            within = durations.show(thresholds.within)
            which = {"job": problem.job_type, "type": problem.error_type}
            return url("runs", **which, status="dead", since=within)
    return url("jobs", problem.job_type) if problem.job_type else ""


PAGE = Page("/", "home.html", show)
