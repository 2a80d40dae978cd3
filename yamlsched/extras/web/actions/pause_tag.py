"""Pause and resume all jobs that have a tag."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from yamlsched.ask import runs
from yamlsched.ask.trail import trail
from yamlsched.extras.web import flow
from yamlsched.extras.web.actions import pause
from yamlsched.extras.web.actions.pause import (
    REASON,
    UNTIL,
    digest,
    jobs_of,
    perform,
    perform_resume,
    read_until,
)
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.flow import Action, Asking, Field, Given, Review
from yamlsched.extras.web.render import count
from yamlsched.extras.web.visit import Visit
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

MAX_LISTED = 200


def ask_tag(visit: Visit, values: Given) -> Asking:
    return Asking([_tag_field(visit, values), REASON, UNTIL])


def review_tag(visit: Visit, values: Given) -> Review:
    jobs = jobs_of(visit.connection, visit.namespace, values)
    timezone = visit.timezone_of("")
    until = read_until(visit, values, timezone)
    already = sum(job.is_paused(visit.now) for job in jobs)
    end = times.show(until, zone(timezone)) if until else "they are resumed"
    lines = [
        f"{_number(jobs, values)}. All are paused until {end}.",
        (
            "Their slots are recorded as skipped, and not run. Runs that wait can only start"
            " afterwards."
        ),
        "Runs that are running already will continue.",
        "A deploy does not end the pause.",
    ]
    warnings = []
    if already:
        are = "is" if already == 1 else "are"
        warnings.append(
            f"{already} of them {are} paused already: the reason is"
            f" replaced{', and the end' if until else ''}."
        )
    return _review(
        visit, values, "Pause", jobs, lines,
        warnings=warnings, state=f"Reason: {values['reason']}", change="Change",
        carried={"instant": rfc3339(until) if until else ""},
    )  # fmt: skip


def ask_resume_tag(visit: Visit, values: Given) -> Asking:
    return Asking([_tag_field(visit, values)])


def review_resume_tag(visit: Visit, values: Given) -> Review:
    jobs = jobs_of(visit.connection, visit.namespace, values)
    paused = [job for job in jobs if job.paused_at is not None]
    are = "is" if len(paused) == 1 else "are"
    lines = [
        f"{_number(jobs, values)}. {len(paused)} of them {are} paused, and resumed.",
        "Slots of the pause are not run. A backfill creates the missing runs.",
        "Runs that wait can start at once, if due.",
    ]
    refusal = "" if paused else f"{_number(jobs, values)}, and none of them is paused."
    return _review(visit, values, "Resume", paused, lines, refusal=refusal, among=jobs)


def _review(
    visit: Visit,
    values: Given,
    verb: str,
    jobs: Sequence[Definition],
    lines: Sequence[str],
    *,
    among: Sequence[Definition] | None = None,
    state: str = "",
    warnings: Sequence[str] = (),
    refusal: str = "",
    change: str = "",
    carried: dict[str, str] | None = None,
) -> Review:
    """Return what will happen to ``jobs``, which are all with the tag, or some ``among`` them."""
    if len(jobs) > pause.MAX_JOBS:
        command = f"yamlsched {verb.lower()} --tag {values['tag']}"
        refusal = (
            f"More than {pause.MAX_JOBS:,} jobs have the tag {values['tag']}."
            f" The command line has no limit: {command}"
        )
    newest = trail(visit.connection, visit.namespace, limit=1)
    return Review(
        title=f"{verb} {count(len(jobs), 'job')} tagged {values['tag']}",
        button=f"{verb} {count(len(jobs), 'job')}",
        back="/actions",
        state=state,
        lines=lines,
        warnings=warnings,
        refusal=refusal,
        carried={
            **(carried or {}),
            "jobs": digest(jobs if among is None else among),
            "upto": str(newest[0].id if newest else 0),
        },
        heading="The jobs",
        listed=[_line(job, visit.now) for job in jobs[:MAX_LISTED]],
        total=len(jobs),
        change=change,
    )


def _line(job: Definition, now: datetime) -> str:
    return f"{job.job_type}, paused {outlook.words(job)}" if job.is_paused(now) else job.job_type


def _tag_field(visit: Visit, values: Given) -> Field:
    """Return the field ``tag``. If a link has not set it, the tags of jobs are offered."""
    tags: list[str] = []
    if not values["tag"]:
        jobs = runs.jobs(visit.connection, visit.namespace)
        tags = sorted({tag for job in jobs if job.retired_at is None for tag in job.tags})[
            : flow.MAX_OFFERED_JOBS
        ]
    return Field("tag", "Tag", "subject", choices=[(tag, tag) for tag in tags], is_required=True)


def _number(jobs: Sequence[Definition], values: Given) -> str:
    return (
        f"{count(len(jobs), 'job')} {'has' if len(jobs) == 1 else 'have'} the tag {values['tag']}"
    )


TAG_FIELDS = ("tag", "jobs", "upto")
PAUSE = Action(
    "pause-tag",
    "Pause all jobs with a tag",
    (*TAG_FIELDS, "reason", "until", "instant"),
    ("tag", "reason"),
    ask_tag,
    review_tag,
    perform,
)
RESUME = Action(
    "resume-tag",
    "Resume all jobs with a tag",
    TAG_FIELDS,
    ("tag",),
    ask_resume_tag,
    review_resume_tag,
    perform_resume,
)
