"""Pause or resume all jobs that have a tag; see ``yamlsched pause --tag``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import psycopg

from yamlsched.act import pause, statements
from yamlsched.act.runs import ActionResult
from yamlsched.act.statements import PausableJob
from yamlsched.ask import history, runs
from yamlsched.ask.why import trail
from yamlsched.errors import Refused
from yamlsched.extras.web.actions.pause import REASON, UNTIL, read_until
from yamlsched.extras.web.actions.subjects import MAX_OFFERED_JOBS
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.flow import Action, Asking, Conflict, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import count, sentence
from yamlsched.extras.web.results import Result
from yamlsched.extras.web.visit import Visit
from yamlsched.sync import definitions
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

MAX_JOBS = 1_000
"""Jobs of one form, which is one transaction."""
MAX_LISTED = 200
MAX_READ_ENTRIES = 200
"""Of the actions since the review."""
VERBS = ("pause", "resume")
ActOnJobs = Callable[[psycopg.Connection[object], Sequence[int]], list[ActionResult]]


def ask_pause(visit: Visit, given: Given) -> Asking:
    title = f"Pause the jobs tagged {given['tag']}" if given["tag"] else "Pause all jobs with a tag"
    return Asking(title, [_tag_field(visit, given), REASON, UNTIL])


def review_pause(visit: Visit, given: Given) -> Review:
    jobs = _jobs(visit.connection, visit.namespace, given)
    timezone = history.timezone_of(visit.connection, visit.namespace, (), visit.file)
    until = read_until(visit, given, timezone)
    already = sum(job.is_paused for job in jobs)
    end = times.show(until, zone(timezone)) if until else "they are resumed"
    lines = [
        f"{_number(jobs, given)}. All are paused until {end}.",
        "Their slots are recorded as skipped, and not run. Runs that wait can only start afterwards.",
        "Runs that are running already will continue.",
        "A deploy does not end the pause.",
    ]
    warnings = []
    if already:
        are = "is" if already == 1 else "are"
        warnings.append(
            f"{already} of them {are} paused already: the reason is replaced{', and the end' if until else ''}."
        )
    return _review(
        visit, given, "Pause", jobs, lines,
        warnings=warnings, state=f"Reason: {given['reason']}", change="Change",
        carried={"instant": rfc3339(until) if until else ""},
    )  # fmt: skip


def perform_pause(doing: Doing, given: Given) -> Redirect:
    def act(connection: psycopg.Connection[object], ids: Sequence[int]) -> list[ActionResult]:
        until = times.parse(given["instant"]) if given["instant"] else None
        return pause.pause(connection, doing.namespace, ids, doing.who, reason=given["reason"], until=until)

    return _perform(doing, given, "paused", act)


def ask_resume(visit: Visit, given: Given) -> Asking:
    return Asking("Resume all jobs with a tag", [_tag_field(visit, given)])


def review_resume(visit: Visit, given: Given) -> Review:
    jobs = _jobs(visit.connection, visit.namespace, given)
    paused = [job for job in jobs if job.paused_at is not None]
    are = "is" if len(paused) == 1 else "are"
    lines = [
        f"{_number(jobs, given)}. {len(paused)} of them {are} paused, and resumed.",
        "Slots of the pause are not run. A backfill creates the missing runs.",
        "Runs that wait can start at once, if due.",
    ]
    refusal = "" if paused else f"{_number(jobs, given)}, and none of them is paused."
    return _review(visit, given, "Resume", paused, lines, refusal=refusal, among=jobs)


def perform_resume(doing: Doing, given: Given) -> Redirect:
    def act(connection: psycopg.Connection[object], ids: Sequence[int]) -> list[ActionResult]:
        return pause.resume(connection, doing.namespace, pause.paused(connection, ids), doing.who)

    return _perform(doing, given, "resumed", act)


def _review(
    visit: Visit,
    given: Given,
    verb: str,
    jobs: Sequence[PausableJob],
    lines: Sequence[str],
    *,
    among: Sequence[PausableJob] | None = None,
    state: str = "",
    warnings: Sequence[str] = (),
    refusal: str = "",
    change: str = "",
    carried: dict[str, str] | None = None,
) -> Review:
    """Return what will happen to ``jobs``, which are all with the tag, or some ``among`` them."""
    if len(jobs) > MAX_JOBS:
        command = f"yamlsched {verb.lower()} --tag {given['tag']}"
        refusal = f"More than {MAX_JOBS:,} jobs have the tag {given['tag']}. The command line has no limit: {command}"
    newest = trail(visit.connection, visit.namespace, limit=1)
    return Review(
        title=f"{verb} {count(len(jobs), 'job')} tagged {given['tag']}",
        button=f"{verb} {count(len(jobs), 'job')}",
        back="/actions",
        state=state,
        lines=lines,
        warnings=warnings,
        refusal=refusal,
        carried={
            **(carried or {}),
            "jobs": _digest(jobs if among is None else among),
            "upto": str(newest[0].id if newest else 0),
        },
        heading="The jobs",
        listed=[_line(job) for job in jobs[:MAX_LISTED]],
        total=len(jobs),
        change=change,
    )


def _line(job: PausableJob) -> str:
    return f"{job.job_type}, paused {outlook.words(job, 'UTC')}" if job.is_paused else job.job_type


def _perform(doing: Doing, given: Given, done: str, act: ActOnJobs) -> Redirect:
    tag, upto = given["tag"], given.number("upto")
    with doing.transaction(f"tag:{tag}") as connection:
        jobs = _jobs(connection, doing.namespace, given)
        definitions.lock(connection, [job.id for job in jobs])
        _refuse_changes(connection, doing, jobs, upto)
        if _digest(jobs) != given["jobs"] or len(jobs) > MAX_JOBS:
            raise Conflict(f"Other jobs have the tag {tag} now: schedules.yaml has changed.")
        results = act(connection, [job.id for job in jobs])
        if not any(result.changed for result in results):
            raise Conflict(f"None of the jobs tagged {tag} can be {done}.")
    with doing.pool.session() as session:
        pause.mark(session, doing.namespace, [job.id for job in jobs])
    changed = sum(result.changed for result in results)
    text = f"{count(changed, 'job')} tagged {tag} {'is' if changed == 1 else 'are'} {done}."
    return Redirect("/actions", Result(text, is_partial=changed < len(results)))


def _refuse_changes(
    connection: psycopg.Connection[object], doing: Doing, jobs: Sequence[PausableJob], upto: int
) -> None:
    """Raise Conflict if one of ``jobs`` was paused or resumed since the review."""
    targets = {f"job:{job.job_type}" for job in jobs}
    for verb in VERBS:
        for entry in trail(connection, doing.namespace, limit=MAX_READ_ENTRIES, verb=verb):
            if entry.id > upto and entry.target in targets:
                raise Conflict(sentence(doing.say(connection, entry)))


def _tag_field(visit: Visit, given: Given) -> Field:
    """Return the field ``tag``. If a link has not set it, the tags of jobs are offered."""
    tags: list[str] = []
    if not given["tag"]:
        jobs = runs.jobs(visit.connection, visit.namespace)
        tags = sorted({tag for job in jobs if job.retired_at is None for tag in job.tags})[:MAX_OFFERED_JOBS]
    return Field("tag", "Tag", "subject", choices=[(tag, tag) for tag in tags], is_required=True)


def _jobs(connection: psycopg.Connection[object], namespace: str, given: Given) -> list[PausableJob]:
    """Return the jobs that have the tag, by name. Raises Invalid if there are none."""
    try:
        ids = history.present_jobs(connection, namespace, (), [given["tag"]])
    except Refused as error:
        raise Invalid("tag", sentence(str(error))) from None
    if not ids:
        raise Invalid("tag", f'No job in schedules.yaml has the tag "{given["tag"]}" any more.')
    return statements.jobs(connection, ids, None)


def _number(jobs: Sequence[PausableJob], given: Given) -> str:
    return f"{count(len(jobs), 'job')} {'has' if len(jobs) == 1 else 'have'} the tag {given['tag']}"


def _digest(jobs: Sequence[PausableJob]) -> str:
    """Return what changes if other jobs have the tag."""
    return hashlib.sha256(" ".join(str(job.id) for job in jobs).encode()).hexdigest()[:32]


FIELDS = ("tag", "jobs", "upto")
PAUSE = Action(
    "pause-tag",
    "Pause all jobs with a tag",
    (*FIELDS, "reason", "until", "instant"),
    ("tag", "reason"),
    ask_pause,
    review_pause,
    perform_pause,
)
RESUME = Action("resume-tag", "Resume all jobs with a tag", FIELDS, ("tag",), ask_resume, review_resume, perform_resume)
