"""``/dead``: dead runs by job and by the type of their error, or by the hour in which they died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from yamlsched.ask import failures, history
from yamlsched.ask.failures import MAX_FAILED, MAX_OF_JOB, FailureGroup, Failures
from yamlsched.db.query import fetch
from yamlsched.errors import Refused
from yamlsched.extras.web.pages.runs import NO_TYPE
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import BadRequest, Page, Visit

SPANS = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "all": None}
MAX_GROUPS = 150
FILTERS = ("type", "tag", "owner")
BY = ("job", "error", "hour")


@dataclass(frozen=True)
class DeadHour:
    """The runs that died in the hour [at, until), of how many jobs, and the job and the type of
    error that most of them have.
    """

    at: datetime
    runs: int
    jobs: int
    job_type: str
    error_type: str
    examined: int  # of all hours and types

    @property
    def until(self) -> datetime:
        return self.at + timedelta(hours=1)


@dataclass(frozen=True)
class DeadPage:
    """The page. ``total`` counts what was read: ``found`` says whether these are all."""

    groups: Sequence[FailureGroup]
    hours: Sequence[DeadHour]
    total: int
    hidden: int
    found: Failures
    span: str
    sort: str
    filter: dict[str, str]
    by: str
    max_runs = MAX_OF_JOB
    max_dead = MAX_FAILED

    @property
    def many(self) -> dict[str, str]:
        """Return the filters as those of an action on all runs that match."""
        named = {
            "error_type" if name == "type" else name: value for name, value in self.filter.items()
        }
        return {**named, "since": self.span if self.span != "all" else ""}

    def but(self, name: str, value: str) -> dict[str, str]:
        """Return the parameters of the URL with one changed."""
        return {"span": self.span, "sort": self.sort, "by": self.by, **self.filter, name: value}


def show(visit: Visit) -> DeadPage:
    span, sort = (
        visit.choice("span", tuple(SPANS), "all"),
        visit.choice("sort", ("newest", "largest"), "newest"),
    )
    filter, by = {name: visit.text(name) for name in FILTERS}, visit.choice("by", BY, "job")
    tags, length = [filter["tag"]] if filter["tag"] else [], SPANS[span]
    try:
        ids = history.definitions(visit.connection, visit.namespace, (), tags, filter["owner"])
    except Refused as error:
        raise BadRequest(sentence(str(error))) from None
    since = visit.now - length if length else None
    groups: list[FailureGroup] = []
    hours: list[DeadHour] = []
    if by == "hour":
        hours = _by_hour(visit, ids, since, filter["type"])
        failed = Failures((), not hours or hours[0].examined < MAX_FAILED)
    else:
        failed = failures.groups(
            visit.connection, visit.namespace, since, definitions=ids, only_dead=True
        )
        groups = [
            group for group in failed.groups if filter["type"] in ("", group.error_type or NO_TYPE)
        ]
    total = sum(group.runs for group in groups) + sum(hour.runs for hour in hours)
    if by == "error":
        groups = by_error(groups)
    groups.sort(key=lambda group: -group.last_at.timestamp())
    if sort == "largest":
        groups.sort(key=lambda group: -group.runs)
        hours.sort(key=lambda hour: -hour.runs)
    return DeadPage(
        groups=groups[:MAX_GROUPS],
        hours=hours[:MAX_GROUPS],
        total=total if filter["type"] or not failed.groups else failed.groups[0].total,
        hidden=len(groups[MAX_GROUPS:]) + len(hours[MAX_GROUPS:]),
        found=failed,
        span=span,
        sort=sort,
        filter=filter,
        by=by,
    )


def _by_hour(
    visit: Visit, ids: Sequence[int] | None, since: datetime | None, type: str
) -> list[DeadHour]:
    """Return the hours of the ``MAX_FAILED`` runs that died last, the newest first."""
    error_type = None if not type else "" if type == NO_TYPE else type
    values = {
        "namespace": visit.namespace,
        "definitions": ids,
        "error_type": error_type,
        "since": since or "-infinity",
        "limit": MAX_FAILED,
    }
    return fetch(visit.connection, DeadHour, "failures.by_hour", **values)


def by_error(groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Return one group for each type of error. Its ``job_type`` is that of its only job, else their
    number.
    """
    by_type: dict[str, list[FailureGroup]] = {}
    for group in groups:
        by_type.setdefault(group.error_type, []).append(group)
    return [
        replace(
            max(of_type, key=lambda group: group.last_at),
            job_type=of_type[0].job_type if len(of_type) == 1 else f"{len(of_type):,} jobs",
            runs=sum(group.runs for group in of_type),
            first_at=min(group.first_at for group in of_type),
        )
        for of_type in by_type.values()
    ]


PAGE = Page("/dead", "dead.html", show)
