"""Two sides and an instant in, the preview of the edit out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from yamlsched.definitions.job import Job
from yamlsched.definitions.wording import quoted
from yamlsched.preview import effects, fields, pileups, words
from yamlsched.preview.values import Change, Entry, FieldChange, JobChange, Level, Moved, Note, Preview, Side, Taken
from yamlsched.store.slots import KeyHolder
from yamlsched.zones import zone

LISTED = 10
"""At most this many jobs are named in a sentence."""


class Edit(NamedTuple):
    """What concerns every job of a comparison."""

    environment: str | None
    at: datetime
    until: datetime
    holders: Mapping[str, KeyHolder]


def compare(
    base: Side,
    head: Side,
    at: datetime,
    until: datetime,
    environment: str | None = None,
    holders: Mapping[str, KeyHolder] | None = None,
) -> Preview:
    """Return what changes if ``head`` takes the place of ``base`` at the instant ``at``; slots: those of (at, until].

    ``holders`` has those keys of slots to come that are used. None: they are presumed, as if everything that ``base``
    has until then was run. In another namespace no key is used.
    """
    olds, news = ({name: entry.job for name, entry in side.entries.items()} for side in (base, head))
    if holders is None:
        holders = effects.presumed(olds, at) if base.namespace == head.namespace else {}
    edit = Edit(environment, at, until, holders)
    jobs = []
    for name in sorted({*base.entries, *head.entries}):
        before, after = base.entries.get(name), head.entries.get(name)
        differing = fields.of_job(before, after)
        if before is None or after is None or differing:
            change = _job(name, before, after, differing, edit)
            jobs.append(_with_invalid(change, base) if name in base.invalid else change)
    of_file = fields.of_file(base, head)
    return Preview(
        base,
        head,
        environment,
        at,
        until,
        fields=of_file,
        notes=(*_of_base(base, head), *words.of_file(base, head), *_timezone(of_file, jobs)),
        jobs=tuple(_with_renames(jobs, olds, news)),
        pile_ups=pileups.worse(olds, news, at, until),
        unchanged=len({*base.entries, *head.entries}) - len(jobs),
        per_week_before=sum(effects.per_week(effects.rule(job), at) for job in olds.values()),
        per_week_after=sum(effects.per_week(effects.rule(job), at) for job in news.values()),
    )


def _job(
    name: str, before: Entry | None, after: Entry | None, differing: tuple[FieldChange, ...], edit: Edit
) -> JobChange:
    old, new = before.job if before else None, after.job if after else None
    rules = effects.rule(old), effects.rule(new)
    changes = effects.changes(*rules, edit.at, edit.until)
    is_edited = rules[0] != rules[1] and new is not None
    taken = effects.taken(new, edit.at, edit.until, edit.holders) if is_edited and new else ()
    following = effects.following(rules[1], edit.at, {one.slot for one in taken})
    notes: list[Note] = []
    if old and not new:
        notes.append(words.retired(old))
    if before and after:
        notes += words.of_edit(before, after, edit.environment)
    job = new or old
    assert job is not None
    return JobChange(
        name,
        Change.ADDED if old is None else Change.REMOVED if new is None else Change.CHANGED,
        differing,
        job.timezone,
        effects.per_week(rules[0], edit.at),
        effects.per_week(rules[1], edit.at),
        following,
        changes,
        taken,
        (*_taken(taken, job), *_passed(changes.passed, job), *notes),
    )


def _of_base(base: Side, head: Side) -> Iterator[Note]:
    """Say what a base that is missing or invalid hides."""
    if base.remark is not None:
        yield base.remark
    gone = [name for name in base.invalid if name not in head.entries]
    if gone:
        more = f" and {len(gone) - LISTED} more" if len(gone) > LISTED else ""
        shown = ", ".join(map(quoted, gone[:LISTED])) + more
        yield Note(f"jobs that have errors in {base.name} are removed: {shown}")


def _with_invalid(change: JobChange, base: Side) -> JobChange:
    """Say that a job is not as new as it looks."""
    note = Note(f"it has errors in {base.name}, so all of it is shown as new; its keys may be used")
    return replace(change, notes=(note, *change.notes))


def _taken(taken: tuple[Taken, ...], job: Job) -> Iterator[Note]:
    for one in taken:
        by = f"the slot at {_local(one.by, job)}" if one.by else "a run that was enqueued manually"
        text = f"it does not run at {_local(one.slot, job)}: its key {one.key} was used by {by}"
        yield Note(text, Level.WARNING)


def _passed(passed: tuple[Moved, ...], job: Job) -> Iterator[Note]:
    for move in passed:
        yield Note(
            f"its slot at {_local(move.before, job)} is removed, and the new time, {_local(move.after, job)}, has "
            "passed: an edit never fires past slots, so there is no run on that date",
            Level.WARNING,
        )


def _local(instant: datetime, job: Job) -> str:
    return f"{instant.astimezone(zone(job.timezone)):%Y-%m-%d %H:%M}"


def _timezone(of_file: tuple[FieldChange, ...], jobs: list[JobChange]) -> Iterator[Note]:
    """Say which jobs a new timezone of the file moves."""
    if not any(change.field == "timezone" for change in of_file):
        return
    moved = [job.job_type for job in jobs if job.slots and any(change.field == "timezone" for change in job.fields)]
    if moved:
        shown = ", ".join(moved[:LISTED]) + (f" and {len(moved) - LISTED} more" if len(moved) > LISTED else "")
        yield Note(f"the new timezone moves the slots of {shown}")
    else:
        yield Note("the new timezone moves no slots")


def _with_renames(jobs: list[JobChange], olds: Mapping[str, Job], news: Mapping[str, Job]) -> Iterator[JobChange]:
    """Add to new jobs that look like a removed one what a new name means."""
    gone: dict[tuple[str | None, ...], list[str]] = {}
    for job in jobs:
        if job.change is Change.REMOVED:
            gone.setdefault(_looks(olds[job.job_type]), []).append(job.job_type)
    for job in jobs:
        alike = gone.get(_looks(news[job.job_type])) if job.change is Change.ADDED else None
        if alike:
            old = alike.pop(0)
            text = (
                f"it looks like {old} under a new name: to the database it is a new job; history, keys and pauses stay "
                f"with {old}"
            )
            job = replace(job, looks_like=old, notes=(*job.notes, Note(text)))
        yield job


def _looks(job: Job) -> tuple[str | None, ...]:
    return (job.handler, job.cron.expression if job.cron else None, job.timezone)
