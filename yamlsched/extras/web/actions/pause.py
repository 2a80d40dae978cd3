"""Pause and resume a job; see ``yamlsched pause``."""

from __future__ import annotations

from datetime import datetime

from yamlsched.act import pause as pausing
from yamlsched.extras.web.actions import subjects
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.ask.outlook import MAX_COUNTED, PauseOutlook
from yamlsched.extras.web.flow import Action, Asking, Conflict, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import bounded
from yamlsched.extras.web.results import Result
from yamlsched.extras.web.visit import Visit
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times
from yamlsched.timetable.times import local_time, rfc3339, short_utc
from yamlsched.timetable.zones import zone

REASON = Field("reason", "Why", hint="For everyone who wonders why the job does not run.", is_required=True)
UNTIL = Field(
    "until",
    "Until",
    hint='09:00 or "mon 08:00" (the next one), tomorrow, 2026-01-14T06:00 (all in the time zone of the job), '
    "2026-01-14T05:00Z, or 2h (from now). Empty: until it is resumed.",
)


def ask(visit: Visit, given: Given) -> Asking:
    lines = []
    if given["job"]:
        job = subjects.job(visit, given)
        pause = outlook.read(visit.connection, visit.namespace, job, visit.now, None).pause
        if pause is not None:
            lines.append(f"It is paused {outlook.words(pause, job.timezone)}. This form replaces that.")
    fields = [subjects.job_field(visit, given), REASON, UNTIL]
    return Asking(f"Pause {given['job']}" if given["job"] else "Pause a job", fields, lines)


def review(visit: Visit, given: Given) -> Review:
    job = subjects.job(visit, given)
    until = read_until(visit, given, job.timezone)
    found = outlook.read(visit.connection, visit.namespace, job, visit.now, until)
    end = times.show(until, zone(job.timezone)) if until else "it is resumed"
    lines = [f"It stays paused until {end}.", _slot_line(job, found, until), _run_line(found)]
    lines.append("A deploy does not end the pause.")
    warnings = []
    if found.pause is not None:
        before = outlook.words(found.pause, job.timezone)
        warnings.append(f"It is paused {before}. That is replaced.")
        if found.pause.paused_until is not None and until is None:
            warnings.append("Without a new end, the end of that pause stays.")
    return Review(
        title=f"Pause {job.job_type}",
        button=f"Pause {job.job_type}",
        back=f"/jobs/{job.job_type}",
        state=f"Reason: {given['reason']}",
        lines=list(filter(None, lines)),
        warnings=warnings,
        refusal="It was removed from schedules.yaml: there is nothing to pause." if job.retired_at else "",
        carried={"instant": rfc3339(until) if until else ""},
        target=f"job:{job.job_type}",
        heading="Slots that are not run" if found.first_slots else "",
        listed=[f"{local_time(slot, zone(job.timezone))} ({short_utc(slot)})" for slot in found.first_slots],
        total=found.slots,
        change="Change",
    )


def _slot_line(job: Definition, found: PauseOutlook, until: datetime | None) -> str:
    if job.schedule is None:
        return "It has no cron. Runs that are enqueued meanwhile wait for the end of the pause."
    if until is None:
        return "Its slots are recorded as skipped, and not run."
    if not found.slots:
        return "No slot of it falls into the pause."
    are = "is" if found.slots == 1 else "are"
    return f"{bounded(found.slots, MAX_COUNTED, 'slot')} of the pause {are} recorded as skipped, and not run."


def _run_line(found: PauseOutlook) -> str:
    waiting, running = (bounded(runs, MAX_COUNTED, "run") for runs in (found.waiting_runs, found.running_runs))
    parts = []
    if found.waiting_runs:
        parts.append(f"{waiting} that {'waits' if found.waiting_runs == 1 else 'wait'} can only start after it.")
    if found.running_runs:
        parts.append(f"{running} already running will continue.")
    return " ".join(parts)


def read_until(visit: Visit, given: Given, timezone: str) -> datetime | None:
    """Return the field ``until``, which is read in ``timezone``; None if it is empty."""
    if not given["until"]:
        return None
    try:
        value = times.parse(given["until"])
        until = times.resolve(value, lambda: zone(timezone), visit.now, is_future=True)
    except ValueError as error:
        raise Invalid("until", f"{error}.") from None
    if until <= visit.now:
        raise Invalid("until", f"{times.show(until, zone(timezone))} has passed: write a later time.")
    return until


def perform(doing: Doing, given: Given) -> Redirect:
    name = given["job"]
    with doing.transaction(f"job:{name}") as connection:
        job = subjects.job_for(connection, doing.namespace, name)
        until = times.parse(given["instant"]) if given["instant"] else None
        [result] = pausing.pause(
            connection,
            doing.namespace,
            [job.id],
            doing.who,
            reason=given["reason"],
            until=until,
            timezone=job.timezone,
        )
        if not result.changed:
            raise Conflict(f"{name} {result.what}.")
    with doing.pool.session() as session:
        pausing.mark(session, doing.namespace, [job.id])
    return Redirect(f"/jobs/{name}", Result(f"{name} {result.what}."))


def ask_resume(visit: Visit, given: Given) -> Asking:
    return Asking("Resume a job", [subjects.job_field(visit, given)])


def review_resume(visit: Visit, given: Given) -> Review:
    job = subjects.job(visit, given)
    found = outlook.read(visit.connection, visit.namespace, job, job.paused_at or visit.now, visit.now)
    lines = []
    if found.slots:
        lines.append(
            f"{bounded(found.slots, MAX_COUNTED, 'slot')} of the pause {'is' if found.slots == 1 else 'are'} not run. "
            "A backfill creates the missing runs."
        )
    if found.waiting_runs:
        waits = "waits" if found.waiting_runs == 1 else "wait"
        lines.append(f"{bounded(found.waiting_runs, MAX_COUNTED, 'run')} that {waits} can start at once, if due.")
    lines.append("From now on its slots are run again.")
    return Review(
        title=f"Resume {job.job_type}",
        button=f"Resume {job.job_type}",
        back=f"/jobs/{job.job_type}",
        state=f"Paused {outlook.words(found.pause, job.timezone)}" if found.pause else "",
        lines=lines,
        refusal="" if found.pause else "It is not paused.",
        target=f"job:{job.job_type}",
        heading="Slots that were not run" if found.first_slots and found.pause else "",
        listed=[f"{local_time(slot, zone(job.timezone))} ({short_utc(slot)})" for slot in found.first_slots],
        total=found.slots,
    )


def perform_resume(doing: Doing, given: Given) -> Redirect:
    name = given["job"]
    target = f"job:{name}"
    with doing.transaction(target) as connection:
        job = subjects.job_for(connection, doing.namespace, name)
        [result] = pausing.resume(connection, doing.namespace, [job.id], doing.who)
        if not result.changed:
            raise Conflict(f"{name} {result.what}{doing.since(connection, target)}.")
    with doing.pool.session() as session:
        pausing.mark(session, doing.namespace, [job.id])
    return Redirect(f"/jobs/{name}", Result(f"{name} {result.what}."))


PAUSE = Action("pause", "Pause a job", ("job", "reason", "until", "instant"), ("job", "reason"), ask, review, perform)
RESUME = Action("resume", "Resume a job", ("job",), ("job",), ask_resume, review_resume, perform_resume)
