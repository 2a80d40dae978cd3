"""``/nights``: jobs by their last 30 days, or by their last 30 runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from yamlsched import durations
from yamlsched.ask import failures
from yamlsched.ask.runs import JobSummary
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.extras.web.ask.strips import latest_runs, strips
from yamlsched.extras.web.visit import Page, Visit, finder

PAGE_JOBS = 50
NIGHTS = 30


class Mark(NamedTuple):
    """A day or a run: its state, that in words, and the page about it."""

    state: str
    text: str
    href: str


@dataclass(frozen=True)
class Nights:
    """The page. ``dead`` counts the runs of each job that died or fail, among those that were read."""

    rows: Sequence[tuple[JobSummary, Sequence[Mark]]]
    heads: Sequence[str]  # of the columns
    dead: Counter[str]
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
        "sort": visit.choice("sort", ("name", "worst"), "name"),
    }
    finds, dead = finder(query["q"]), Counter[str]()
    for group in failures.groups(visit.connection, visit.namespace, visit.now - timedelta(days=NIGHTS)).groups:
        if not group.is_call:
            dead[group.job_type] += group.dead + group.failing
    jobs = [
        job
        for job in all_jobs(visit.connection, visit.namespace)
        if job.retired_at is None
        and finds(job.job_type, job.owner, *job.tags)
        and (not query["only"] or dead[job.job_type])
    ]
    if query["sort"] == "worst":
        jobs.sort(key=lambda job: -dead[job.job_type])
    pages = max(1, -(-len(jobs) // PAGE_JOBS))
    number = min(visit.number("page", 1), pages)
    listed = jobs[(number - 1) * PAGE_JOBS : number * PAGE_JOBS]
    marks = _nights(visit, listed) if query["by"] == "nights" else _runs(visit, listed)
    first = next(iter(marks.values()), ())
    heads = [mark.text.partition(":")[0] for mark in first] if query["by"] == "nights" else []
    rows = [(job, marks[job.job_type]) for job in listed]
    return Nights(rows, heads, dead, query, len(jobs), number, pages)


def _nights(visit: Visit, jobs: Sequence[JobSummary]) -> dict[str, list[Mark]]:
    zones = [(job.job_type, job.timezone) for job in jobs]
    days = strips(visit.connection, visit.namespace, zones, visit.now, NIGHTS)
    return {
        name: [
            Mark(day.state, f"{day.date:%a %-d %b}: {day.text}", visit.url("why", job=name, at=day.date))
            for day in of_job
        ]
        for name, of_job in days.items()
    }


def _runs(visit: Visit, jobs: Sequence[JobSummary]) -> dict[str, list[Mark]]:
    found = latest_runs(visit.connection, visit.namespace, [job.job_type for job in jobs], NIGHTS)
    marks = {}
    for name, runs in found.items():
        marks[name] = [Mark("none", "no earlier run", "")] * (NIGHTS - len(runs))
        for run in runs:
            took = f", took {durations.show(run.took)}" if run.took is not None else ""
            error = f": {run.error}" if run.error else ""
            text = f"run {run.id}: {run.status} {durations.between(run.finished_at, visit.now)} ago{took}{error}"
            marks[name].append(Mark(run.state, text, visit.url("runs", run.id)))
    return marks


PAGE = Page("/nights", "nights.html", show, title="Nights")
