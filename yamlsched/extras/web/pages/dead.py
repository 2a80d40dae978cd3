"""``/dead``: dead runs by job and by the type of their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from yamlsched.ask import failures
from yamlsched.ask.failures import MAX_FAILED, MAX_OF_JOB, FailureGroup, Failures
from yamlsched.extras.web.pages.runs import NO_TYPE
from yamlsched.extras.web.visit import Page, Visit

SPANS = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "all": None}
MAX_GROUPS = 200


@dataclass(frozen=True)
class DeadPage:
    """The page. ``total`` counts what was read: ``found`` says whether these are all."""

    groups: Sequence[FailureGroup]
    total: int
    hidden: int
    found: Failures
    span: str
    sort: str
    spans = tuple(SPANS)
    max_runs = MAX_OF_JOB
    max_dead = MAX_FAILED

    @staticmethod
    def type_of(group: FailureGroup) -> str:
        return group.error_type or NO_TYPE


def show(visit: Visit) -> DeadPage:
    span, sort = visit.choice("span", tuple(SPANS), "all"), visit.choice("sort", ("newest", "largest"), "newest")
    length = SPANS[span]
    found = failures.groups(visit.connection, visit.namespace, visit.now - length if length else None, only_dead=True)
    groups = sorted(found.groups, key=lambda group: -group.runs) if sort == "largest" else found.groups
    return DeadPage(
        groups=groups[:MAX_GROUPS],
        total=groups[0].total if groups else 0,
        hidden=len(groups[MAX_GROUPS:]),
        found=found,
        span=span,
        sort=sort,
    )


PAGE = Page("/dead", "dead.html", show, title="Dead")
