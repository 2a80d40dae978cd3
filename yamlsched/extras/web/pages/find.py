"""``/find``: jobs, runs and errors that contain what is written into the box of each page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from yamlsched.ask import history, runs, search
from yamlsched.ask.runs import RunRow
from yamlsched.ask.search import Filter
from yamlsched.errors import Refused
from yamlsched.extras.web.visit import Page, SeeOther, Visit, finder
from yamlsched.runs.lifecycle import Status, error_text

MAX_JOBS, MAX_RUNS, MAX_SUGGESTIONS = 50, 20, 12


@dataclass(frozen=True)
class Found:
    """What contains ``text``: jobs by their names, owners and tags; runs that died or will be
    retried, by their errors; and keys that begin with it. ``suggestions`` are values with what
    they are.
    """

    text: str
    jobs: Sequence[Any]
    runs: Sequence[RunRow]
    keys: Sequence[RunRow]
    suggestions: Sequence[tuple[str, str]]
    max_jobs = MAX_JOBS
    error = staticmethod(error_text)


def show(visit: Visit) -> Found:
    text = visit.text("q")
    if not text:
        raise SeeOther(visit.url(""))
    known = [job for job in runs.jobs(visit.connection, visit.namespace) if job.retired_at is None]
    if text in [job.job_type for job in known]:
        raise SeeOther(visit.url("jobs", text))
    if text in [name for job in known for name in (job.owner, *job.tags)]:
        raise SeeOther(visit.url("", q=text))
    with suppress(Refused):
        raise SeeOther(visit.url("runs", history.find(visit.connection, visit.namespace, text)))
    finds = finder(text)
    jobs = [job for job in known if finds(job.job_type, job.description, job.owner, *job.tags)]
    failed = _runs(visit, Filter(error=text, statuses=[Status.DEAD]))
    failed += _runs(visit, Filter(error=text, statuses=[Status.FAILED]))
    keys = _runs(visit, Filter(key=text.rstrip("*") + "*"))
    names = {job.job_type: "job" for job in known if finds(job.job_type)}
    owners = {job.owner: "owner" for job in known if finds(job.owner)}
    tags = {tag: "tag" for job in known for tag in job.tags if finds(tag)}
    errors = {run.error_type: "error" for run in failed if run.error_type}
    suggestions = {**errors, **tags, **owners, **names}
    return Found(text, jobs, failed, keys, sorted(suggestions.items())[:MAX_SUGGESTIONS])


def _runs(visit: Visit, filter: Filter) -> list[RunRow]:
    limit, most = MAX_RUNS, search.MAX_SEARCHED_IDS
    return list(search.page(visit.connection, visit.namespace, filter, limit, max_ids=most).runs)


PAGE = Page("/find", "find.html", show)
