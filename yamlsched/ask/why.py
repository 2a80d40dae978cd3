"""What happened to a slot, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from psycopg import Connection

from yamlsched import durations
from yamlsched.ask import edits, runs
from yamlsched.ask.edits import InUse
from yamlsched.ask.gaps import REASONS, gap_sentence, pause_words
from yamlsched.ask.runs import RunRow
from yamlsched.ask.slots import Accounts, SlotAccount, accounts
from yamlsched.ask.trail import TrailEntry, actions_on, paused_by
from yamlsched.db.query import execute, now
from yamlsched.errors import Refused
from yamlsched.runs.lifecycle import error_text
from yamlsched.sync import hosts
from yamlsched.sync.definitions import Definition
from yamlsched.sync.in_use import disabled
from yamlsched.timetable import keys as spread
from yamlsched.timetable import slots, times
from yamlsched.timetable.calendars import of_rows, skipped_by
from yamlsched.timetable.cron import Cron, parse_schedule
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.times import bounds, local_time, short_utc
from yamlsched.timetable.zones import zone

SEARCH_SPAN = timedelta(days=366 * 8)
"""How far back to look for a slot: 29 February may be eight years away."""
MAX_SLOTS_OF_DAY = 50
MICROSECOND = timedelta(microseconds=1)


@dataclass
class SlotReport:
    """What happened to a slot. ``verdict`` is one of: run, pruned, skipped, due, future, unknown,
    no_slot.
    """

    job_type: str
    at: datetime
    local: str
    verdict: str
    is_slot: bool
    key: str | None = None
    lines: list[str] = field(default_factory=list)
    run_id: int | None = None
    status: str | None = None
    reason: str | None = None
    previous_slot: datetime | None = None
    next_slot: datetime | None = None
    job_is_off: str | None = None
    """That the job is retired, disabled or paused now, and since when."""
    edits: InUse | None = None
    """Those in use when the run was created, or when the slot was recorded as skipped."""


@dataclass
class DayReport:
    """The reports of a local date's slots: the first ``MAX_SLOTS_OF_DAY``, and how many ``more``
    there are.
    """

    job_type: str
    date: date
    timezone: str
    slots: list[SlotReport]
    off_week: str
    more: int
    job_is_off: str | None
    previous_slot: datetime | None
    next_slot: datetime | None


def explain(
    connection: Connection[Any], namespace: str, job: Definition, at: times.TimeInput | None
) -> SlotReport | DayReport:
    """Explain what happened at a time of a job that has a cron; None: to its latest slot."""
    instant = now(connection)
    if at is None:
        at = latest_slot(job, instant)
    if isinstance(at, timedelta):
        instant = instant.replace(second=0, microsecond=0)
    moment = times.anchor(at, lambda: zone(job.timezone), instant, is_future=False)
    if not isinstance(moment, datetime):
        return explain_day(connection, namespace, job, moment)
    return explain_slot(connection, namespace, job, bounds(moment, zone(job.timezone))[0])


def sentences(report: SlotReport) -> list[str]:
    """Return all that is known about a slot, which edit defined it, and why the job has no runs
    now.
    """
    off = report.job_is_off
    lines = report.lines + (
        [off] if off and not any(line.startswith(off) for line in report.lines) else []
    )
    if report.edits is not None:
        edit = report.edits.job or report.edits.file
        lines = [*lines, f"defined by {edits.applied(edit)}"]
    return lines


def explain_day(
    connection: Connection[Any], namespace: str, job: Definition, day: date
) -> DayReport:
    """Explain what happened to the slots of a date of the job's wall clock."""
    cron, where = _timing(job)
    first, last = bounds(day, where)
    all_slots = slots.slots(cron, where, first - MICROSECOND, last)
    known = accounts(
        connection, job, namespace, [slot.at for slot in islice(all_slots, MAX_SLOTS_OF_DAY)]
    )
    more = sum(1 for _ in all_slots)
    off = off_reason(job, known.now, hosts.environment_in_use(connection, namespace))
    reports = _explained(connection, namespace, job, known)
    return DayReport(
        job.job_type,
        day,
        job.timezone,
        reports,
        slots.off_week(cron, where, day),
        more,
        off,
        *neighbours(job, first, last),
    )


def latest_slot(job: Definition, now: datetime) -> datetime:
    """Return the job's latest slot up to ``now``; if there is none in eight years, its next."""
    slot = slots.newest_slot(*_timing(job), now - SEARCH_SPAN, now) or slots.next_slot(
        *_timing(job), now
    )
    if slot is None:
        raise Refused(f'job "{job.job_type}" has no slot within decades: pass --at')
    return slot.at


def off_reason(job: Definition, now: datetime, environment: str) -> str | None:
    """Return that the job is retired, disabled or paused, and since when; None for one whose slots
    get runs.
    """
    if job.retired_at is not None:
        return f"the job has been retired since {short_utc(job.retired_at)}"
    if not job.enabled:
        # when it was disabled is not stored, but all slots up to then are accounted for
        since = (
            f", and its last slot before that was {short_utc(job.last_slot_at)}"
            if job.last_slot_at
            else ""
        )
        return f"the job {disabled(environment)}{since}"
    if job.paused_at is not None and (job.paused_until is None or now <= job.paused_until):
        return f"the job has been paused since {short_utc(job.paused_at)}{pause_words(job)}"
    return None


def explain_slot(
    connection: Connection[Any], namespace: str, job: Definition, at: datetime
) -> SlotReport:
    """Explain what happened to ``at``, for a job that has a cron."""
    return _explained(connection, namespace, job, accounts(connection, job, namespace, [at]))[0]


def _explained(
    connection: Connection[Any], namespace: str, job: Definition, known: Accounts
) -> list[SlotReport]:
    environment = hosts.environment_in_use(connection, namespace)
    actions = (
        actions_on(connection, namespace, job.job_type)
        if any(gap.reason == "paused" for gap in known.gaps)
        else []
    )
    explained = [
        _explain(connection, namespace, job, slot, known.now, environment, actions)
        for slot in known.slots
    ]
    decided = [(at, report) for report, at in explained if at is not None]
    decided.sort(key=lambda pair: pair[0], reverse=True)
    for nth, (at, report) in enumerate(decided):
        report.edits = decided[nth - 1][1].edits if nth else None
        if not nth or (report.edits is not None and not report.edits.is_before(at)):
            report.edits = edits.in_use(connection, namespace, at, job.job_type)
    return [report for report, _ in explained]


def _explain(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    slot: SlotAccount,
    now: datetime,
    environment: str,
    actions: Sequence[TrailEntry],
) -> tuple[SlotReport, datetime | None]:
    """Return the report without its edits, and when they count: when the run was created, or the
    slot recorded as skipped.
    """
    (cron, where), at, run, pruned, gap = _timing(job), slot.at, slot.run, slot.pruned, slot.gap
    mismatch = slots.mismatch(cron, where, at)
    report = SlotReport(job.job_type, at, local_time(at, where), "no_slot", not mismatch)
    if not mismatch:
        scheduled = slots.newest_slot(cron, where, at - slots.MINUTE, at)
        assert scheduled is not None
        report.key = slot_key(job.job_type, cron, scheduled)
        if scheduled.note:
            report.lines.append(scheduled.note)
    report.reason = gap.reason if gap else None
    report.job_is_off = off_reason(job, now, environment)
    decided_at = None

    if run is not None:
        report.verdict, report.run_id, report.status, decided_at = (
            "run",
            run.id,
            run.status,
            run.created_at,
        )
        report.lines.append(_run(run, now))
        if (known := runs.run(connection, run.id)) is not None:
            report.lines += [f"it {known.waits}"] if known.waits else []
            report.lines += [f"late: {line}" for line in known.lateness(now)]
    elif pruned is not None:
        report.verdict, report.run_id = "pruned", pruned.run_id
        report.lines.append(
            f"run {pruned.run_id} was created, and pruned at {short_utc(pruned.pruned_at)}"
        )
    if gap is not None and (not mismatch or at in (gap.first_slot, gap.last_slot)):
        if report.verdict == "no_slot":
            report.verdict, decided_at = "skipped", gap.recorded_at
        report.lines.append(gap_sentence(gap, paused_by(gap, actions)))
    if report.verdict == "no_slot" and mismatch:
        report.previous_slot, report.next_slot = neighbours(job, at, at)
        report.lines.append(f'not a slot of "{job.schedule}" in {job.timezone}: {mismatch}')
        for word, beside in (
            ("slot before:", report.previous_slot),
            ("slot after: ", report.next_slot),
        ):
            if beside:
                report.lines.append(f"{word} {times.show(beside, where)}")
    elif report.verdict == "no_slot":
        report.verdict, line = _unaccounted(connection, namespace, job, slot, now, environment)
        report.lines.append(line)
        if at <= job.effective_from:
            _, report.next_slot = neighbours(job, at, max(now, job.effective_from))
            if report.next_slot and report.job_is_off is None:
                report.lines.append(f"next slot: {times.show(report.next_slot, where)}")
    return report, decided_at


def _timing(job: Definition) -> tuple[Cron, ZoneInfo]:
    assert job.schedule is not None
    return parse_schedule(job.schedule), zone(job.timezone)


def neighbours(
    job: Definition, first: datetime, last: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the slot before ``first`` and the slot after ``last``."""
    before = slots.newest_slot(*_timing(job), first - SEARCH_SPAN, first - MICROSECOND)
    after = slots.next_slot(*_timing(job), last)
    return before.at if before else None, after.at if after else None


def _run(run: RunRow, now: datetime) -> str:
    text = f"run {run.id} {run.status}, attempt {run.attempts} of {run.max_attempts}"
    if run.finished_at is not None:
        text += f", finished at {short_utc(run.finished_at)}"
    elif run.status in ("queued", "failed"):
        text += f", due at {short_utc(run.run_at)}"
        text += (
            " (spread)"
            if run.attempts == 0 and run.run_at > max(run.scheduled_for or now, now)
            else ""
        )
    if run.last_error:
        text += f"; last error: {error_text(run.error_type, run.last_error)}"
    return text


def _unaccounted(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    slot: SlotAccount,
    now: datetime,
    environment: str,
) -> tuple[str, str]:
    """Return the verdict on a slot that has neither a run nor a gap, and why."""
    at = slot.at
    if slot.state == "future":
        seconds = int((at - now).total_seconds())
        text = f"it is in the future: in {durations.show(timedelta(seconds=seconds))}"
        cron, where = _timing(job)
        [nominal] = (slot.nominal.date() for slot in slots.slots(cron, where, at - MICROSECOND, at))
        if by := skipped_by(of_rows(job.skip_on), of_rows(job.only_on), nominal):
            return "future", f"{text}; then {REASONS['calendar']} ({by})"
        due = spread.run_at(spread.offset(namespace, job.job_type, job.spread), cron, where, at)
        return "future", text + (
            f"; spread starts its run at {times.show(due, zone(job.timezone))}" if due > at else ""
        )
    if slot.state == "unknown":
        return (
            "unknown",
            (
                "not run: the job was added, enabled or rescheduled at"
                f" {short_utc(job.effective_from)}, after this slot;"
                ' "yamlsched backfill" creates its run'
            ),
        )
    if slot.state == "pruned":
        return "unknown", "it was processed, but its run and its key were pruned"
    off = off_reason(job, at, environment)
    if off is not None:
        waits_for = (
            "if it is added again"
            if job.retired_at
            else "once that ends"
            if job.enabled
            else "once it is enabled"
        )
        return "due", f"{off}; {waits_for}, the slot is recorded as skipped"
    parameters = {"namespace": namespace, "ids": [job.id]}
    if job.overlap == "wait" and (
        row := execute(connection, "slots.earliest_open_slots", **parameters).fetchone()
    ):
        return (
            "due",
            (
                f"it waits: run {row.run_id} of slot {short_utc(row.slot)} is unfinished, and "
                "overlap: wait runs the job's slots one after another"
            ),
        )
    return "due", 'it is due, and no tick has processed it yet: is "yamlsched tick" running?'
