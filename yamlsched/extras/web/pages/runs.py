"""``/runs``: runs by filters, newest first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from yamlsched.ask import failures, history, search
from yamlsched.ask.failures import FailureGroup
from yamlsched.ask.runs import RunRow, jobs, took
from yamlsched.ask.search import Filter, RunPage
from yamlsched.errors import Refused
from yamlsched.extras.web.pages.durations import Durations, of_week
from yamlsched.extras.web.pages.job import unknown_job
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import BadRequest, Page, SeeOther, Visit
from yamlsched.runs.lifecycle import Status, error_text
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone_or_utc

PAGE_RUNS = 50
MAX_SORTED_RUNS = 1_000
MAX_OFFERED_JOBS = 500
MAX_GROUPS = 10
FAILING_SPAN = timedelta(days=1)
"""Of runs that wait to be retried, those that failed within it are grouped by type of error."""
NO_TYPE = "-"
"""In a URL: an error without a type."""
NAMES = ("job", "status", "key", "error", "type", "tag", "owner", "since", "until")
"""The parameters that filter."""
OPTIONS = ("job", "tag", "status", "key", "error", "since", "until")
"""Those that are options of the command line as well."""


@dataclass(frozen=True)
class RunLine:
    """A run, and the time at which it ended, else started, else is due."""

    run: RunRow
    verb: str
    at: datetime
    took: timedelta | None
    error: str
    running_for: timedelta | None
    usual: Durations | None


@dataclass(frozen=True)
class RunsPage:
    """The page. ``query`` are the filters as the URL has them; ``notes`` say how they were read."""

    query: dict[str, str]
    rows: Sequence[RunLine]
    sort: str
    page: RunPage
    is_first: bool
    notes: Sequence[str]
    jobs: Sequence[str]
    timezone: str
    failing: Sequence[FailureGroup]
    how_they_ended = staticmethod(failures.how_they_ended)
    max_sorted = MAX_SORTED_RUNS
    statuses = tuple(str(status) for status in Status)

    @property
    def is_filtered(self) -> bool:
        return any(self.query.values())

    @property
    def many(self) -> dict[str, str] | None:
        """Return the filters as those of an action on all runs that match; None if an action lacks
        one of them.
        """
        if self.query["key"] or self.query["error"]:
            return None
        same = {name: self.query[name] for name in ("job", "tag", "owner", "since", "until")}
        return {**same, "error_type": self.query["type"]}

    @property
    def command(self) -> str:
        """Return the same selection for the command line."""
        words = [
            f"--{name.replace('_', '-')} {shlex.quote(self.query[name])}"
            for name in OPTIONS
            if self.query[name]
        ]
        if self.query["type"] not in ("", NO_TYPE):
            words.append(f"--error-type {shlex.quote(self.query['type'])}")
        return " ".join(["yamlsched runs", *words])

    def but(self, **changed: str) -> dict[str, str]:
        """Return the filters with some changed."""
        return {**self.query, **changed}


def show(visit: Visit) -> RunsPage:
    query = {name: visit.text(name) for name in NAMES}
    notes: list[str] = []
    key = query["key"]
    known = [job.job_type for job in jobs(visit.connection, visit.namespace)]
    if key and "*" not in key and not _has_other(query, "key"):
        try:
            raise SeeOther(visit.url("runs", history.find(visit.connection, visit.namespace, key)))
        except Refused as error:
            notes.append(sentence(str(error)))
    if query["job"] and query["job"] not in known:
        raise unknown_job(visit, query["job"])
    filter, timezone = _filter(visit, query, notes)
    before, after = visit.number("before", 0) or None, visit.number("after", 0) or None
    sort = visit.choice("sort", ("newest", "took"), "newest")
    page = _page(visit, filter, before, after)
    if sort == "took":
        runs = sorted(
            _page(visit, filter, None, None, MAX_SORTED_RUNS).runs, key=_took, reverse=True
        )
        page = replace(page, runs=runs[:PAGE_RUNS], older=None, newer=None)
    # this reaches the newest runs: the first page shows them
    if after is not None and page.newer is None:
        before, page = None, _page(visit, filter, None, None)
    is_first = sort == "took" or (before is None and (after is None or page.newer is None))
    running = sorted({run.job_type for run in page.runs if run.status == Status.RUNNING})
    usual = of_week(visit, running) if running else {}
    has_groups = (
        is_first and query["status"] == Status.FAILED and not _has_other(query, "job", "status")
    )
    return RunsPage(
        query=query,
        rows=[_row(visit, run, usual) for run in page.runs],
        sort=sort,
        page=page,
        is_first=is_first,
        notes=notes,
        jobs=known[:MAX_OFFERED_JOBS],
        timezone=visit.clock or (timezone if query["job"] else ""),
        failing=_failing(visit, filter) if has_groups else (),
    )


def _has_other(query: dict[str, str], *names: str) -> bool:
    """Return whether there is a filter besides those of these names."""
    return any(value for name, value in query.items() if name not in names)


def _failing(visit: Visit, filter: Filter) -> list[FailureGroup]:
    """Return the largest groups of unfinished runs that failed within a day."""
    ids = history.definitions(
        visit.connection, visit.namespace, filter.jobs, filter.tags, filter.owner
    )
    failed = failures.groups(
        visit.connection, visit.namespace, visit.now - FAILING_SPAN, definitions=ids
    )
    return sorted(
        (group for group in failed.groups if group.failing), key=lambda group: -group.failing
    )[:MAX_GROUPS]


def _took(run: RunRow) -> timedelta:
    return took(run) or timedelta(-1)


def _page(
    visit: Visit, filter: Filter, before: int | None, after: int | None, limit: int = 0
) -> RunPage:
    parameters = {"before": before, "after": after, "max_ids": search.MAX_SEARCHED_IDS}
    return search.page(visit.connection, visit.namespace, filter, limit or PAGE_RUNS, **parameters)


def _filter(visit: Visit, query: dict[str, str], notes: list[str]) -> tuple[Filter, str]:
    """Return the filter and the time zone of times without one; add to ``notes`` how such times
    were read.
    """
    timezone = visit.timezone_of(query["job"])
    status = visit.choice("status", RunsPage.statuses, "")
    filter = Filter(
        jobs=[query["job"]] if query["job"] else [],
        tags=[query["tag"]] if query["tag"] else [],
        owner=query["owner"],
        statuses=status.split(),
        key=query["key"] or None,
        error=query["error"] or None,
        error_type={"": None, NO_TYPE: ""}.get(query["type"], query["type"]),
        since=_instant(visit, "since", timezone, notes),
        until=_instant(visit, "until", timezone, notes),
    )
    return filter, timezone


def _instant(visit: Visit, name: str, timezone: str, notes: list[str]) -> datetime | None:
    if (value := visit.time(name)) is None:
        return None
    where = zone_or_utc(timezone)
    try:
        at = times.resolve(value, lambda: where, visit.now, is_future=False)
    except (ValueError, OverflowError) as error:
        raise BadRequest(sentence(str(error))) from None
    if times.is_local(value):
        read = times.show(at, where)
        notes.append(f"{name.capitalize()} is read in {timezone}: {read}.")
    return at


def _row(visit: Visit, run: RunRow, usual: Mapping[str, Durations]) -> RunLine:
    is_waiting = run.status in (Status.QUEUED, Status.FAILED)
    at = run.run_at if is_waiting else run.finished_at or run.started_at or run.run_at
    verb = "due" if is_waiting else "ended" if run.finished_at else "started"
    error = error_text(run.error_type, run.last_error) if run.has_error else ""
    running_for = (
        visit.now - run.started_at if run.status == Status.RUNNING and run.started_at else None
    )
    return RunLine(run, verb, at, took(run), error, running_for, usual.get(run.job_type))


PAGE = Page("/runs", "runs.html", show)
