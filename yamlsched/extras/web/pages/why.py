"""``/why?job=&at=``: how a job is, or what happened to a slot and why, as ``yamlsched why``
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from yamlsched.ask.condition import JobCondition, condition
from yamlsched.ask.why import DayReport, SlotReport, explain, neighbours, sentences
from yamlsched.errors import Refused
from yamlsched.extras.web.pages.job import unknown_job
from yamlsched.extras.web.pages.report import NotRun, not_run
from yamlsched.extras.web.visit import BadRequest, Page, Visit
from yamlsched.sync import definitions
from yamlsched.sync.definitions import Definition

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Answer:
    """What is known about one slot. ``state`` is that of its run, or the verdict on a slot without
    one.
    """

    report: SlotReport
    state: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Why:
    """The page: what did not run in the last day, the answer about a slot, or those about the slots
    of a day.
    """

    jobs: Sequence[str]
    not_run: Sequence[NotRun] = ()
    job: Definition | None = None
    at: str = ""
    answers: Sequence[Answer] = ()
    day: DayReport | None = None
    previous_slot: datetime | None = None
    next_slot: datetime | None = None
    timezone: str = ""
    condition: JobCondition | None = None  # without a time
    max_not_run = 200


def show(visit: Visit) -> Why:
    name, at = visit.text("job"), visit.text("at")
    names = definitions.names(visit.connection, visit.namespace)
    if not name:
        return Why(names, not_run(visit.connection, visit.namespace, visit.now - DAY, visit.now))
    job = definitions.find(visit.connection, visit.namespace, name)
    if job is None:
        raise unknown_job(visit, name)
    found = None if at else condition(visit.connection, visit.namespace, job)
    if job.schedule is None and found is not None:
        return Why(names, (), job, condition=found)
    if job.schedule is None:
        raise BadRequest(
            f'Job "{name}" has no cron, so it has no slots.', "It runs when it is enqueued."
        )
    value, timezone = visit.time("at"), visit.clock or job.timezone
    try:
        report = explain(visit.connection, visit.namespace, job, value)
    except (Refused, OverflowError) as error:
        raise BadRequest(f"{error}.") from None
    if isinstance(report, DayReport):
        answers = [Answer(slot, _state(slot), slot.lines) for slot in report.slots]
        beside = report.previous_slot, report.next_slot
        return Why(names, (), job, at, answers, report, *beside, timezone)
    previous, following = neighbours(job, report.at, report.at)
    answers = [Answer(report, _state(report), sentences(report))]
    return Why(names, (), job, at, answers, None, previous, following, timezone, found)


def _state(report: SlotReport) -> str:
    if report.verdict == "run":
        return report.status or "unknown"
    return "unknown" if report.verdict == "no_slot" else report.verdict


PAGE = Page("/why", "why.html", show)
