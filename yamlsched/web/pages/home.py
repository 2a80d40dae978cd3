"""``/``: what ``yamlsched status --check`` reports, then every job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from yamlsched.operations import health
from yamlsched.operations.health import Health, JobHealth, Problem, Thresholds
from yamlsched.operations.strips import Day, strips
from yamlsched.web.charts.strip import strip
from yamlsched.web.problems import target
from yamlsched.web.visit import Page, Visit, has_words

PAGE_JOBS = 50
"""Jobs on one page."""
URGENT = ("stuck", "late", "failing")
STATES = (*URGENT, "paused", "running", "ok", "new", "disabled", "retired")


@dataclass(frozen=True)
class JobRow:
    """A job, its state in one word, and what explains that."""

    job: JobHealth
    state: str
    note: str
    strip: Markup

    @property
    def next_slot_at(self) -> datetime | None:
        return self.job.next_slot_at if self.job.enabled and self.job.retired_at is None else None


@dataclass(frozen=True)
class Home:
    """The page. ``states`` counts all jobs; ``matching`` are those of the filter, of which ``rows`` are one page."""

    health: Health
    problems: Sequence[tuple[Problem, str]]  # with the page that shows what it is about
    queue: dict[str, Any]
    states: Counter[str]
    text: str
    state: str
    matching: int
    number: int
    pages: int
    rows: Sequence[JobRow]
    first_problems = 8
    max_problems = 200

    @property
    def jobs(self) -> int:
        """How many jobs there are, without retired ones."""
        return self.states.total() - self.states["retired"]


def show(visit: Visit) -> Home:
    text, state = visit.text("q"), visit.choice("state", STATES, "")
    thresholds = Thresholds()
    now = health.read(visit.connection, visit.namespace, thresholds.within)
    states = {job.job_type: health.state(job, now) for job in now.jobs}
    found = [
        job
        for job in now.jobs
        if (states[job.job_type] == state if state else states[job.job_type] != "retired")
        and (not text or _matches(job, text))
    ]
    found.sort(key=lambda job: _rank(states[job.job_type]))  # stable: jobs of one rank stay sorted by name
    pages = max(1, -(-len(found) // PAGE_JOBS))
    number = min(visit.number("page", 1), pages)
    listed = found[(number - 1) * PAGE_JOBS : number * PAGE_JOBS]
    days = strips(visit.connection, visit.namespace, [(job.job_type, job.timezone) for job in listed], now.now)
    return Home(
        health=now,
        problems=[(each, target(each, visit.url, thresholds)) for each in health.problems(now, thresholds)],
        queue=health.queue(now),
        states=Counter(states.values()),
        text=text,
        state=state,
        matching=len(found),
        number=number,
        pages=pages,
        rows=[
            JobRow(job, states[job.job_type], health.note(job, now), _strip(visit, job, days[job.job_type]))
            for job in listed
        ],
    )


def _matches(job: JobHealth, text: str) -> bool:
    return has_words(text, job.job_type, job.description, job.owner, *job.tags)


def _rank(state: str) -> int:
    """Return the place of a state in the list: what needs attention first, retired jobs last."""
    if state in URGENT:
        return URGENT.index(state)
    return len(URGENT) + (state == "retired")


def _strip(visit: Visit, job: JobHealth, days: Sequence[Day]) -> Markup:
    """Return the strip; a day of a job with slots leads to their explanations."""
    if job.schedule is None:
        return strip(days)
    of_job = visit.url("why", job=job.job_type)
    return strip(days, lambda day: f"{of_job}&at={day.date}")


PAGE = Page("/", "home.html", show, title="Jobs")
