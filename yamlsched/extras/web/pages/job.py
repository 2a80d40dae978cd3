"""``/jobs/J``: what happened to each slot of a job, why slots were skipped, and how long its runs
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from yamlsched.ask import edits, health, search
from yamlsched.ask.attention import problems
from yamlsched.ask.edits import Edit
from yamlsched.ask.health import JobHealth
from yamlsched.ask.problem import Problem, Thresholds
from yamlsched.ask.slots import SlotAccount
from yamlsched.ask.trail import TrailEntry, trail
from yamlsched.errors import ScheduleError
from yamlsched.extras.web.ask import timeline as operations
from yamlsched.extras.web.ask.timeline import JobFacts, Timeline, TimelineGap
from yamlsched.extras.web.charts import timeline as charts
from yamlsched.extras.web.charts.timeline import Chart
from yamlsched.extras.web.pages.actions import details as details_of
from yamlsched.extras.web.pages.durations import Durations, of_week
from yamlsched.extras.web.pages.home import target
from yamlsched.extras.web.visit import NotFound, Page, Visit
from yamlsched.sync import definitions
from yamlsched.sync.field_changes import Change, before_and_after, field_name
from yamlsched.text import closest_match
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.words import describe
from yamlsched.timetable.zones import zone_or_utc

MAX_EDITS = 10
"""Edits of the job that are listed."""
MAX_ACTIONS = 10
"""Actions of operators on the job that are listed."""
MAX_MARKS = 50
"""Edits that the timeline marks."""
MAX_LISTED_RUNS = 20
MAX_RUNS = 100
"""Runs of a job without slots that are shown."""


class JobEdit(NamedTuple):
    """An edit of the job: its commit as it is shown, what it did, and the keys that it changed, in
    words.
    """

    edit: Edit
    commit: str | None
    change: str
    fields: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class JobPage:
    """The page. ``earlier`` and ``later`` are where the neighbouring spans end; a job without slots
    has neither.

    ``why_not`` says why there is no timeline of a job that has slots.
    """

    facts: JobFacts
    timezone: str
    health: JobHealth
    note: str
    problems: Sequence[tuple[Problem, str]]  # with the page that shows what it is about
    timeline: Timeline | None
    chart: Chart | None
    runs: Sequence[SlotAccount]  # the newest
    durations: Durations | None
    actions: Sequence[TrailEntry]
    edits: Sequence[JobEdit] = ()
    has_more_edits: bool = False
    why_not: str = ""
    slots_in_words: str = ""
    earlier: str | None = None
    later: str | None = None
    words = charts.WORDS
    max_cells = 150
    detail = staticmethod(details_of)


def show(visit: Visit) -> JobPage:
    name = visit.path["job"]
    facts = operations.job_facts(visit.connection, visit.namespace, name)
    definition = definitions.find(visit.connection, visit.namespace, name)
    if facts is None or definition is None:
        raise unknown_job(visit, name)
    thresholds = Thresholds()
    now = health.read(visit.connection, visit.namespace, thresholds.within, [definition.id])
    [job] = now.jobs
    series = None
    earlier = later = None
    why_not = slots_in_words = ""
    if facts.schedule is not None:
        until, span = visit.instant("until"), visit.choice("span", tuple(operations.SPANS), "")
        try:
            series = operations.timeline(
                visit.connection, visit.namespace, definition, visit.now, span, until
            )
        except ScheduleError as error:
            why_not = f"The slots cannot be computed here: {error}."
        else:
            earlier = rfc3339(series.start, "seconds")
            slots_in_words = describe(parse_schedule(facts.schedule), facts.timezone, visit.now)
            if until is not None and series.end < visit.now:
                later = rfc3339(min(series.end + (series.end - series.start), visit.now), "seconds")
    else:
        runs = search.page(
            visit.connection,
            visit.namespace,
            search.Filter(jobs=[name]),
            MAX_RUNS,
            max_ids=search.MAX_SEARCHED_IDS,
        )
        series = operations.of_runs(runs.runs, visit.now)
    timezone = visit.clock or (facts.timezone if facts.schedule else visit.timezone(None))
    where = zone_or_utc(timezone)
    edited = _edits(visit, name)
    return JobPage(
        facts=facts,
        timezone=timezone,
        health=job,
        note=health.note(job, now),
        problems=[
            (each, target(each, visit.url, thresholds))
            for each in problems(now, thresholds)
            if each.job_type == name
        ],
        timeline=series,
        chart=(
            charts.timeline(series, where, _link(visit, facts), _marks(visit, name, series))
            if series
            else None
        ),
        runs=(
            [cell for cell in series.cells if cell.run is not None][: -MAX_LISTED_RUNS - 1 : -1]
            if series
            else ()
        ),
        durations=of_week(visit, [name]).get(name),
        actions=trail(visit.connection, visit.namespace, target=f"job:{name}", limit=MAX_ACTIONS),
        edits=edited[:MAX_EDITS],
        has_more_edits=len(edited) > MAX_EDITS,
        why_not=why_not,
        slots_in_words=slots_in_words,
        earlier=earlier,
        later=later,
    )


def _edits(visit: Visit, name: str) -> list[JobEdit]:
    """Return the latest edits of the job, and one more if there are more."""
    latest = edits.edits(visit.connection, visit.namespace, limit=MAX_EDITS + 1, job_type=name)
    changes = edits.changes(visit.connection, latest, job_type=name)
    kinds = {"added": Change.ADDED, "retired": Change.REMOVED}
    listed = []
    for edit in latest:
        [change] = changes[edit.id]
        kind = kinds.get(change.change, Change.CHANGED)
        fields = [
            (field_name(key), before_and_after(key, kind))
            for key in edits.fields(change.before, change.after)
        ]
        listed.append(JobEdit(edit, edits.commit(edit), change.change, fields))
    return listed


def _marks(visit: Visit, name: str, series: Timeline) -> list[tuple[datetime, str]]:
    """Return when the job was edited in the span of the timeline, and by which commits."""
    rows = edits.edits(
        visit.connection, visit.namespace, series.start, series.end, limit=MAX_MARKS, job_type=name
    )
    return [(edit.applied_at, edits.label(edit)) for edit in rows]


def unknown_job(visit: Visit, name: str) -> NotFound:
    """Return the page that says that there is no such job, and which one may be meant."""
    meant = closest_match(name, definitions.names(visit.connection, visit.namespace))
    hint = f'Did you mean "{meant}"?' if meant else "A job is known after its first sync."
    link = (meant, visit.url("jobs", meant)) if meant else None
    return NotFound(f'There is no job "{name}" in namespace "{visit.namespace}".', hint, link)


def _link(visit: Visit, facts: JobFacts) -> charts.Link:
    """Return the function that makes the link of a cell or a gap: a slot to its explanation, an
    enqueued run to it.
    """

    def link(part: SlotAccount | TimelineGap) -> str:
        if isinstance(part, SlotAccount) and facts.schedule is None and part.run is not None:
            return visit.url("runs", part.run.id)
        at = part.at if isinstance(part, SlotAccount) else part.first
        return visit.url("why", job=facts.job_type, at=rfc3339(at, "minutes"))

    return link


PAGE = Page("/jobs/{job:path}", "job.html", show)
