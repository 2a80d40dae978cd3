"""Pause and resume a job, or all jobs that have a tag; see ``yamlsched pause``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime

import psycopg

from yamlsched.act import pause as pausing
from yamlsched.act.runs import ActionResult
from yamlsched.ask import history
from yamlsched.ask.trail import trail
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.ask.outlook import MAX_COUNTED, PauseOutlook
from yamlsched.extras.web.flow import (
    Action,
    Asking,
    Conflict,
    Doing,
    Field,
    Given,
    Invalid,
    Redirect,
    Review,
)
from yamlsched.extras.web.render import bounded, count, sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.sync import definitions
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times
from yamlsched.timetable.times import local_time, rfc3339, short_utc
from yamlsched.timetable.zones import zone

MAX_JOBS = 1_000
"""Jobs of one form, which is one transaction."""
MAX_LISTED = 200
MAX_READ_ENTRIES = 200
"""Of the actions since the review."""
VERBS = ("pause", "resume")
REASON = Field("reason", "Why", hint="Tells others why the job does not run.", is_required=True)
UNTIL = Field(
    "until",
    "Until",
    "time",
    "Words are 2h (from now), 09:00 or mon 08:00 (the next one), tomorrow, or 2026-01-14T05:00Z."
    " Empty: until it is resumed.",
    choices=[(end, end) for end in ("1h", "4h", "tomorrow 09:00", "mon 09:00")],
)


def ask(visit: Visit, values: Given) -> Asking:
    lines = []
    if values["job"]:
        job = flow.job_of(visit, values)
        if job.is_paused(visit.now):
            lines.append(f"It is paused {outlook.words(job)}. This form replaces that.")
    fields = [flow.job_field(visit, values), REASON, UNTIL]
    return Asking(fields, lines)


def review(visit: Visit, values: Given) -> Review:
    job = flow.job_of(visit, values)
    until = read_until(visit, values, job.timezone)
    expected = outlook.read(visit.connection, visit.namespace, job, visit.now, until)
    end = times.show(until, zone(job.timezone)) if until else "it is resumed"
    lines = [f"It stays paused until {end}.", _slot_line(job, expected, until), _run_line(expected)]
    lines.append("A deploy does not end the pause.")
    warnings = []
    if job.is_paused(visit.now):
        warnings.append(f"It is paused {outlook.words(job)}. That is replaced.")
        if job.paused_until is not None and until is None:
            warnings.append("Without a new end, the end of that pause stays.")
    return Review(
        title=f"Pause {job.job_type}",
        button=f"Pause {job.job_type}",
        back=f"/jobs/{job.job_type}",
        state=f"Reason: {values['reason']}",
        lines=list(filter(None, lines)),
        warnings=warnings,
        refusal=(
            "It was removed from schedules.yaml: there is nothing to pause."
            if job.retired_at
            else ""
        ),
        carried={"instant": rfc3339(until) if until else ""},
        target=f"job:{job.job_type}",
        heading="Slots that are not run" if expected.first_slots else "",
        listed=_slots(job, expected),
        total=expected.slots,
        change="Change",
    )


def _slot_line(job: Definition, expected: PauseOutlook, until: datetime | None) -> str:
    if job.schedule is None:
        return "It has no cron. Runs that you enqueue wait until the pause ends."
    if until is None:
        return "Its slots are recorded as skipped, and not run."
    if not expected.slots:
        return "No slot of it falls into the pause."
    are = "is" if expected.slots == 1 else "are"
    return (
        f"{bounded(expected.slots, MAX_COUNTED, 'slot')} of the pause {are} recorded as skipped,"
        " and not run."
    )


def _slots(job: Definition, expected: PauseOutlook) -> list[str]:
    where = zone(job.timezone)
    return [f"{local_time(slot, where)} ({short_utc(slot)})" for slot in expected.first_slots]


def _run_line(expected: PauseOutlook) -> str:
    waiting, running = (
        bounded(runs, MAX_COUNTED, "run") for runs in (expected.waiting_runs, expected.running_runs)
    )
    parts = []
    if expected.waiting_runs:
        parts.append(
            f"{waiting} that {'waits' if expected.waiting_runs == 1 else 'wait'} can only start"
            " after it."
        )
    if expected.running_runs:
        parts.append(f"{running} already running will continue.")
    return " ".join(parts)


def read_until(visit: Visit, values: Given, timezone: str) -> datetime | None:
    """Return the field ``until``, which is read in ``timezone``; None if it is empty."""
    if (value := values.time("until")) is None:
        return None
    try:
        until = times.resolve(value, lambda: zone(timezone), visit.now, is_future=True)
    except ValueError as error:
        raise Invalid("until", sentence(str(error))) from None
    if until <= visit.now:
        raise Invalid(
            "until", f"{times.show(until, zone(timezone))} has passed: write a later time."
        )
    return until


def ask_resume(visit: Visit, values: Given) -> Asking:
    return Asking([flow.job_field(visit, values)])


def review_resume(visit: Visit, values: Given) -> Review:
    job = flow.job_of(visit, values)
    is_paused = job.is_paused(visit.now)
    expected = outlook.read(
        visit.connection, visit.namespace, job, job.paused_at or visit.now, visit.now
    )
    lines = []
    if expected.slots:
        lines.append(
            f"{bounded(expected.slots, MAX_COUNTED, 'slot')} of the pause"
            f" {'is' if expected.slots == 1 else 'are'} not run. A backfill creates the missing"
            " runs."
        )
    if expected.waiting_runs:
        waits = "waits" if expected.waiting_runs == 1 else "wait"
        lines.append(
            f"{bounded(expected.waiting_runs, MAX_COUNTED, 'run')} that {waits} can start at once,"
            " if due."
        )
    lines.append("Its slots run again from now on.")
    return Review(
        title=f"Resume {job.job_type}",
        button=f"Resume {job.job_type}",
        back=f"/jobs/{job.job_type}",
        state=f"Paused {outlook.words(job)}" if is_paused else "",
        lines=lines,
        refusal="" if is_paused else "It is not paused.",
        target=f"job:{job.job_type}",
        heading="Slots that were not run" if expected.first_slots and is_paused else "",
        listed=_slots(job, expected),
        total=expected.slots,
    )


def perform(doing: Doing, values: Given) -> Redirect:
    until = values.instant("instant")

    def act(
        connection: psycopg.Connection[object], ids: Sequence[int], timezone: str
    ) -> list[ActionResult]:
        reason = values["reason"]
        return pausing.pause(
            connection,
            doing.namespace,
            ids,
            doing.who,
            reason=reason,
            until=until,
            timezone=timezone,
        )

    return _perform(doing, values, "paused", act)


def perform_resume(doing: Doing, values: Given) -> Redirect:
    def act(
        connection: psycopg.Connection[object], ids: Sequence[int], timezone: str
    ) -> list[ActionResult]:
        paused = ids if values["job"] else pausing.paused(connection, ids)
        return pausing.resume(connection, doing.namespace, paused, doing.who)

    return _perform(doing, values, "resumed", act)


def _perform(
    doing: Doing,
    values: Given,
    done: str,
    act: Callable[[psycopg.Connection[object], Sequence[int], str], list[ActionResult]],
) -> Redirect:
    name, tag = values["job"], values["tag"]
    target = f"job:{name}" if name else f"tag:{tag}"
    with doing.transaction(target) as connection:
        jobs = jobs_of(connection, doing.namespace, values)
        ids = [job.id for job in jobs]
        definitions.lock(connection, ids)
        if tag:
            _refuse_changes(connection, doing, jobs, values.number("upto"))
            if digest(jobs) != values["jobs"] or len(jobs) > MAX_JOBS:
                raise Conflict(f"Other jobs have the tag {tag} now: schedules.yaml has changed.")
        timezone = flow.job_for(connection, doing.namespace, name).timezone if name else "UTC"
        results = act(connection, ids, timezone)
        what = (
            f"{name} {results[0].what}" if name else f"None of the jobs tagged {tag} can be {done}"
        )
        if not any(result.changed for result in results):
            raise Conflict(f"{what}{doing.since(connection, target)}.")
    with doing.pool.session() as session:
        pausing.mark(session, doing.namespace, ids)
    if name:
        return Redirect(f"/jobs/{name}", Result(f"{what}."))
    changed = sum(result.changed for result in results)
    text = f"{count(changed, 'job')} tagged {tag} {'is' if changed == 1 else 'are'} {done}."
    return Redirect("/actions", Result(text, is_partial=changed < len(results)))


def _refuse_changes(
    connection: psycopg.Connection[object], doing: Doing, jobs: Sequence[Definition], upto: int
) -> None:
    """Raise Conflict if one of ``jobs`` was paused or resumed since the review."""
    targets = {f"job:{job.job_type}" for job in jobs}
    for verb in VERBS:
        for entry in trail(connection, doing.namespace, limit=MAX_READ_ENTRIES, verb=verb):
            if entry.id > upto and entry.target in targets:
                raise Conflict(sentence(doing.say(connection, entry)))


def jobs_of(
    connection: psycopg.Connection[object], namespace: str, values: Given
) -> list[Definition]:
    """Return the job, or those that have the tag, by name. Raises Invalid if there are none."""
    if values["job"]:
        return [flow.job_for(connection, namespace, values["job"])]
    try:
        ids = history.present_jobs(connection, namespace, (), [values["tag"]])
    except Refused as error:
        raise Invalid("tag", sentence(str(error))) from None
    if not ids:
        raise Invalid("tag", f'No job in schedules.yaml has the tag "{values["tag"]}" any more.')
    return sorted(definitions.read(connection, ids), key=lambda job: job.job_type)


def digest(jobs: Sequence[Definition]) -> str:
    """Return what changes if other jobs have the tag."""
    return hashlib.sha256(" ".join(str(job.id) for job in jobs).encode()).hexdigest()[:32]


PAUSE = Action(
    "pause",
    "Pause a job",
    ("job", "reason", "until", "instant"),
    ("job", "reason"),
    ask,
    review,
    perform,
)
RESUME = Action(
    "resume", "Resume a job", ("job",), ("job",), ask_resume, review_resume, perform_resume
)
