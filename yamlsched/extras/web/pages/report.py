"""``/report``: what happened last night, over all jobs, as ``yamlsched report`` has it, and what did not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from yamlsched.ask import report
from yamlsched.ask.attention import Problem, Thresholds
from yamlsched.ask.report import Report
from yamlsched.ask.report_document import document
from yamlsched.extras.web.ask.not_run import NotRun, not_run
from yamlsched.extras.web.problems import target
from yamlsched.extras.web.visit import Page, Visit
from yamlsched.schedule.load import timezone_of_file
from yamlsched.show.document import Document

SPANS = {"12h": timedelta(hours=12), "24h": timedelta(hours=24), "3d": timedelta(days=3), "7d": timedelta(days=7)}
SCREENS = 4
"""How much longer lists are than on a terminal."""


@dataclass(frozen=True)
class ReportPage:
    """The page. ``not_run`` replaces the skipped slots of ``words``: it has those of unfinished pauses too."""

    found: Report
    words: Document
    problems: Sequence[tuple[Problem, str]]  # with the page that shows what it is about
    not_run: Sequence[NotRun]
    span: str
    spans = tuple(SPANS)
    max_problems, max_not_run = 40, 100


def show(visit: Visit) -> ReportPage:
    span = visit.choice("since", tuple(SPANS), "12h")
    since = visit.now - SPANS[span]
    found = report.read(visit.connection, visit.namespace, since, timezone=timezone_of_file(visit.file))
    return ReportPage(
        found=found,
        words=document(found, SCREENS),
        problems=[(each, target(each, visit.url, Thresholds())) for each in found.problems],
        not_run=not_run(visit.connection, visit.namespace, since, visit.now),
        span=span,
    )


PAGE = Page("/report", "report.html", show, title="Last night")
