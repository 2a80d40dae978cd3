"""``/dead``: dead runs by job and by the type of their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from yamlsched.operations import overview
from yamlsched.operations.overview import MAX_DEAD, MAX_OF_JOB
from yamlsched.store.overview import DeadGroup
from yamlsched.web.pages.runs import NO_TYPE
from yamlsched.web.visit import Page, Visit

SPANS = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "all": None}
MAX_GROUPS = 200


@dataclass(frozen=True)
class DeadPage:
    """The page. ``total`` counts what was read: ``is_complete`` says whether these are all."""

    groups: Sequence[DeadGroup]
    total: int
    hidden: int
    is_complete: bool
    span: str
    sort: str
    spans = tuple(SPANS)
    max_runs = MAX_OF_JOB
    max_dead = MAX_DEAD

    def is_bounded(self, group: DeadGroup) -> bool:
        """Return whether there are more runs of the job than were counted."""
        return group.examined >= MAX_OF_JOB or not self.is_complete

    @staticmethod
    def type_of(group: DeadGroup) -> str:
        return group.error_type or NO_TYPE


def show(visit: Visit) -> DeadPage:
    span, sort = visit.choice("span", tuple(SPANS), "all"), visit.choice("sort", ("newest", "largest"), "newest")
    length = SPANS[span]
    found = overview.dead(visit.connection, visit.namespace, visit.now - length if length else None)
    groups = sorted(found.groups, key=lambda group: -group.runs) if sort == "largest" else found.groups
    return DeadPage(
        groups=groups[:MAX_GROUPS],
        total=groups[0].total if groups else 0,
        hidden=len(groups[MAX_GROUPS:]),
        is_complete=found.is_complete,
        span=span,
        sort=sort,
    )


PAGE = Page("/dead", "dead.html", show, title="Dead")
