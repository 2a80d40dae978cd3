"""Two sides and an instant in, the preview of the edit out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from yamlsched.extras.preview import notes, slot_changes
from yamlsched.extras.preview.model import Entry, Hint, JobChange, Preview, Side, note, warning
from yamlsched.runs.lifecycle import Keep
from yamlsched.schedule.job import Job, Output, to_yaml
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.source import ERROR
from yamlsched.sync import field_changes
from yamlsched.sync.field_changes import Change, FieldChange
from yamlsched.sync.slot_plan import KeyHolder

UNKNOWN_ENVIRONMENT = "YS116"
SETTINGS = ("timezone", "environments", "retention", "paths", "queues", "limits", "notify")
"""The keys outside of jobs, as ``Side`` and ``Loaded`` name them."""
DEFAULTS = Entry(Job(""), True, None)
COMMAND_DEFAULTS = Entry(Job("", output=Output(Keep.ALWAYS)), True, None)
"""What a job that exists on one side only is compared with."""


def file_side(name: str, loaded: Loaded, environment: str | None) -> Side:
    """Return the side that a valid file is.

    Without an environment, a job that names its own counts as enabled: a review concerns the places
    where it runs.
    """
    entries = {job.name: _entry(loaded, job, environment) for job in loaded.jobs.values()}
    return Side(
        name,
        loaded.namespace or "default",
        entries,
        **{key: getattr(loaded, key) for key in SETTINGS},
    )


def base_side(name: str, loaded: Loaded | None, environment: str | None, head: Side) -> Side:
    """Return the side that the base is: of a file that does not exist (None) nothing, of an invalid
    one what is valid.

    So the pull request that repairs a file can be compared with the broken one.
    """
    if loaded is None:
        remark = (
            f"{name} does not exist: every job is new. If the file had another name there, pass it"
            " as REVISION:path"
        )
        return Side(name, head.namespace, {}, remark=note(remark))
    valid = file_side(name, loaded, environment)
    # an environment that only the edit adds is not an error of the base
    errors = [
        error
        for error in loaded.diagnostics
        if error.severity == ERROR and error.code != UNKNOWN_ENVIRONMENT
    ]
    if not errors:
        return valid

    def is_known(key: str) -> bool:
        return ("version",) not in loaded.findings.invalid and loaded.is_known(key)

    count = f"{len(errors)} error{'s' * (len(errors) > 1)}"
    first = f"line {errors[0].line}: {errors[0].message}"
    unknown: dict[str, Any] = {key: None for key in SETTINGS if not is_known(key)}
    # the slots of a job that follows one with errors are not known
    entries = {
        name: entry
        for name, entry in valid.entries.items()
        if entry.job.cron or not entry.job.after
    }
    return replace(
        valid,
        namespace=valid.namespace if is_known("namespace") else head.namespace,
        entries=entries,
        invalid=tuple(name for name in loaded.entries if name not in entries),
        remark=warning(f"{name} has {count}, and only its valid jobs are compared ({first})"),
        **unknown,
    )


def _entry(loaded: Loaded, job: Job, environment: str | None) -> Entry:
    enabled = loaded.written(job.name, "enabled")
    is_enabled = enabled is None or bool(enabled.value)
    is_elsewhere = environment is None and job.enabled is not is_enabled
    slots_of = () if {"cron", "crons"} & loaded.entries[job.name].value.keys() else job.after
    shown = replace(job, enabled=is_enabled) if is_elsewhere else job
    return Entry(shown, is_enabled, job.environments, slots_of)


def compare(
    base: Side,
    head: Side,
    at: datetime,
    until: datetime,
    environment: str | None = None,
    holders: Mapping[str, KeyHolder] | None = None,
) -> Preview:
    """Return what changes if ``head`` replaces ``base`` at the instant ``at``; slots are those of
    (at, until].

    ``holders`` has the used keys among those of slots to come. None: they are assumed, as if every
    slot that ``base`` has until then was run. In another namespace no key is used.
    """
    old_jobs, new_jobs = (
        {name: entry.job for name, entry in side.entries.items()} for side in (base, head)
    )
    if holders is None:
        holders = (
            slot_changes.assumed_holders(old_jobs, at) if base.namespace == head.namespace else {}
        )
    names = sorted({*base.entries, *head.entries})
    jobs = []
    for name in names:
        before, after = base.entries.get(name), head.entries.get(name)
        fields = _job_fields(before, after)
        if before is None or after is None or fields:
            change = _job_change(base, head, name, fields, at, until, environment, holders)
            if name in base.invalid:
                text = (
                    f"it has errors in {base.name}, so all of it is shown as new; its keys may be"
                    " used"
                )
                change = replace(change, notes=(note(text), *change.notes))
            jobs.append(change)
    file_fields = tuple(_file_fields(base, head, environment))
    is_timezone_changed = any(change.field == "timezone" for change in file_fields)
    return Preview(
        base,
        head,
        environment,
        at,
        until,
        fields=file_fields,
        notes=(*notes.of_base(base, head), *notes.of_file(base, head, jobs, is_timezone_changed)),
        jobs=tuple(_with_renames(jobs, old_jobs, new_jobs)),
        pile_ups=slot_changes.pile_ups(head.namespace, old_jobs, new_jobs, at, until),
        unchanged=len(names) - len(jobs),
        fires_per_week_before=_per_week(old_jobs.values(), at),
        fires_per_week_after=_per_week(new_jobs.values(), at),
    )


def _per_week(jobs: Iterable[Job], at: datetime) -> float:
    return sum(slot_changes.per_week(slot_changes.rule(job), at) for job in jobs)


def _job_change(
    base: Side,
    head: Side,
    name: str,
    fields: tuple[FieldChange, ...],
    at: datetime,
    until: datetime,
    environment: str | None,
    holders: Mapping[str, KeyHolder],
) -> JobChange:
    before, after = base.entries.get(name), head.entries.get(name)
    old, new = before.job if before else None, after.job if after else None
    job = new or old
    assert job is not None
    rules = slot_changes.rule(old), slot_changes.rule(new)
    slots = slot_changes.changes(*rules, at, until)
    conflicts = (
        slot_changes.key_conflicts(new, at, until, holders) if new and rules[0] != rules[1] else ()
    )
    hints: list[Hint] = [*notes.of_conflicts(conflicts, job), *notes.of_missed(slots.missed, job)]
    if after and rules[0] != rules[1]:
        hints += notes.of_slots(after, base, head, at)
    if before and after:
        hints += notes.of_edit(head.namespace, before, after, environment)
    elif old:
        hints.append(notes.RETIRED)
    if old and old.enabled and not (new and new.enabled):
        hints += notes.of_followers(name, base, head)
    return JobChange(
        job.name,
        Change.ADDED if old is None else Change.REMOVED if new is None else Change.CHANGED,
        None,
        job.timezone,
        fields,
        slot_changes.per_week(rules[0], at),
        slot_changes.per_week(rules[1], at),
        slot_changes.next_run_slot(
            rules[1], at, {conflict.scheduled_for for conflict in conflicts}
        ),
        slots,
        conflicts,
        tuple(hints),
    )


def _with_renames(
    jobs: list[JobChange], old_jobs: Mapping[str, Job], new_jobs: Mapping[str, Job]
) -> Iterator[JobChange]:
    """Add to new jobs that look like a removed one what the new name means."""
    removed: dict[tuple[str | tuple[str, ...] | None, ...], list[str]] = {}
    for job in jobs:
        if job.change is Change.REMOVED:
            removed.setdefault(_identity(old_jobs[job.job_type]), []).append(job.job_type)
    for job in jobs:
        alike = (
            removed.get(_identity(new_jobs[job.job_type])) if job.change is Change.ADDED else None
        )
        if alike:
            old = alike.pop(0)
            text = (
                f"it looks like {old} under a new name: to the database it is a new job; history,"
                f" keys and pauses stay with {old}"
            )
            job = replace(job, looks_like=old, notes=(*job.notes, warning(text)))
        yield job


def _identity(job: Job) -> tuple[str | tuple[str, ...] | None, ...]:
    return (job.handler, job.command, job.cron.expression if job.cron else None, job.timezone)


def _job_fields(before: Entry | None, after: Entry | None) -> tuple[FieldChange, ...]:
    """Return the keys that differ, defaults merged in. A job of one side only is compared with the
    defaults.
    """
    if (
        before
        and after
        and before == after
        and field_changes.is_same(before.job.payload, after.job.payload)
    ):
        return ()
    one_side = before or after
    defaults = COMMAND_DEFAULTS if one_side and one_side.job.command else DEFAULTS
    old, new = (None if entry is None else _keys(entry) for entry in (before, after))
    return field_changes.job_changes(old, new, _keys(defaults))


def _keys(entry: Entry) -> dict[str, Any]:
    """Return the keys of a job as JSON values, in the order in which a reviewer reads them."""
    keys: dict[str, Any] = {}
    for key, value in to_yaml(entry.job).items():
        keys[key] = value
        if key == "enabled":
            keys["enabled"] = entry.is_enabled
            keys["environments"] = None if entry.environments is None else list(entry.environments)
    return keys


def _file_fields(before: Side, after: Side, environment: str | None) -> Iterator[FieldChange]:
    """Yield the keys outside of jobs that differ, as far as both sides know them.

    Without an environment, the values of each are among them: no job shows these.
    """
    sides = [field_changes.settings(side) for side in (before, after)]
    for side, known in zip((before, after), sides, strict=True):
        if environment is None and side.environments is not None:
            known["environments"] = side.environments
    yield from field_changes.differences(
        {"namespace": before.namespace}, {"namespace": after.namespace}
    )
    yield from field_changes.settings_changes(*sides)
