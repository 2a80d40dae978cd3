"""``/report``: what happened last night, over all jobs, as ``yamlsched report`` has it, and what
did not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.ask import gaps, report
from yamlsched.ask.gaps import REASONS, pause_words
from yamlsched.ask.problem import Problem, Thresholds
from yamlsched.ask.report import Report
from yamlsched.ask.report_document import document
from yamlsched.ask.trail import TrailEntry, paused_by, trail
from yamlsched.errors import CronError, ScheduleError
from yamlsched.extras.web.pages.home import target
from yamlsched.extras.web.visit import Page, Visit
from yamlsched.schedule.load import timezone_of_file
from yamlsched.show.document import Document
from yamlsched.sync import definitions, hosts
from yamlsched.sync.definitions import Definition
from yamlsched.sync.in_use import disabled
from yamlsched.timetable import slots
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.times import parse, resolve, short_utc
from yamlsched.timetable.zones import zone, zone_or_utc

MAX_ACTIONS = 1_000
"""The latest pauses, and the latest ends of pauses, among which those of the span are looked for.
"""
GRACE = timedelta(minutes=2)
"""A slot that was due shortly before the end is not missing yet."""
URGENT_FIRST = ("due", *REASONS)


@dataclass(frozen=True)
class NotRun:
    """Slots of a job that did not run for one reason: that of a skipped slot, or ``due``: no sync
    has come by.
    """

    job_type: str
    timezone: str
    reason: str
    slots: int
    first_at: datetime
    last_at: datetime
    why: str


def not_run(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime
) -> list[NotRun]:
    """Return what did not run in [since, until), by job and reason, unintended reasons first."""
    totals: dict[tuple[str, str, str], NotRun] = {}
    for gap in (
        *_recorded(connection, namespace, since, until),
        *_unaccounted(connection, namespace, since, until),
    ):
        key = gap.job_type, gap.reason, gap.why
        if known := totals.get(key):
            first, last = min(known.first_at, gap.first_at), max(known.last_at, gap.last_at)
            gap = replace(gap, slots=known.slots + gap.slots, first_at=first, last_at=last)
        totals[key] = gap
    return sorted(
        totals.values(), key=lambda gap: (URGENT_FIRST.index(gap.reason), -gap.slots, gap.job_type)
    )


def _recorded(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime
) -> Iterator[NotRun]:
    """Yield the gaps that overlap the span."""
    recorded = gaps.read_gaps(connection, namespace, since, until)
    overlapping = [gap for gap in recorded if gap.last_slot >= since]
    actions: defaultdict[str, list[TrailEntry]] = defaultdict(list)
    if any(gap.reason == "paused" for gap in overlapping):
        for entry in _pauses(connection, namespace):
            actions[entry.target].append(entry)
    for gap in overlapping:
        part = gaps.within_span(gap, since, until)
        if part is not None:
            what, _, run = (gap.detail or "").partition(":")
            detail = f" ({what}, run {run})" if run else f" ({what})" if what else ""
            why = (paused_by(gap, actions[f"job:{gap.job_type}"]) or REASONS[gap.reason]) + detail
            yield NotRun(gap.job_type, gap.timezone, gap.reason, *part, why)


def _pauses(connection: psycopg.Connection[Any], namespace: str) -> Sequence[TrailEntry]:
    """Return the latest pauses and their ends, newest first."""
    both = [
        trail(connection, namespace, limit=MAX_ACTIONS, verb=verb) for verb in ("pause", "resume")
    ]
    return sorted((entry for entries in both for entry in entries), key=lambda entry: -entry.id)


def _unaccounted(
    connection: psycopg.Connection[Any], namespace: str, since: datetime, until: datetime
) -> Iterator[NotRun]:
    """Yield the slots of the span that no sync has recorded."""
    environment = hosts.environment_in_use(connection, namespace)
    names = definitions.names(connection, namespace)
    for job in definitions.named(connection, namespace, names):
        is_due = job.next_slot_at is not None and job.next_slot_at < until
        is_off = not job.enabled or job.paused_at is not None
        if job.schedule is None or not (is_due or is_off):
            continue
        start = max(since - gaps.MICROSECOND, job.accounted_to)
        try:
            part = slots.span(
                parse_schedule(job.schedule), zone(job.timezone), start, until - gaps.MICROSECOND
            )
        except (CronError, ScheduleError):
            continue
        if start >= until or part is None:
            continue
        reason, why = _why(job, environment)
        if reason != "due" or part.first < until - GRACE:
            yield NotRun(job.job_type, job.timezone, reason, part.count, part.first, part.last, why)


def _why(job: Definition, environment: str) -> tuple[str, str]:
    if not job.enabled:
        return "disabled", f"the job {disabled(environment)}"
    if job.paused_at is not None:
        since = short_utc(job.paused_at)
        return "paused", f"the job has been paused since {since}{pause_words(job)}"
    waits = ", or a run of an earlier slot is unfinished" if job.overlap == "wait" else ""
    return "due", f'no sync has processed it{waits}: is "yamlsched tick" running?'


SPANS = (
    "yesterday 18:00",
    "12h",
    "24h",
    "3d",
    "7d",
)  # the first is last night, whole at every hour of the day after
SCREENS = 4
"""How much longer lists are than on a terminal."""


@dataclass(frozen=True)
class ReportPage:
    """The page. ``not_run`` replaces the skipped slots of ``words``: it has those of unfinished
    pauses too.
    """

    found: Report
    words: Document
    problems: Sequence[tuple[Problem, str]]  # with the page that shows what it is about
    not_run: Sequence[NotRun]
    span: str
    spans = SPANS
    max_problems, max_not_run = 40, 100


def show(visit: Visit) -> ReportPage:
    span = visit.choice("since", SPANS, SPANS[0])
    clock = visit.timezone(None)
    since = resolve(parse(span), lambda: zone_or_utc(clock), visit.now, is_future=False)
    summary = report.read(
        visit.connection, visit.namespace, since, timezone=timezone_of_file(visit.file)
    )
    return ReportPage(
        found=summary,
        words=document(replace(summary, timezone=clock, clock=clock), SCREENS),
        problems=[(each, target(each, visit.url, Thresholds())) for each in summary.problems],
        not_run=not_run(visit.connection, visit.namespace, since, visit.now),
        span=span,
    )


PAGE = Page("/report", "report.html", show)
