"""What a preview contains. ``diff`` and ``plan`` build it, one module per format writes it.

The names of fields are the keys of the JSON document, which ``document`` completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from yamlsched.schedule.job import Job, Limit, NotifyTarget, Queue, Retention
from yamlsched.sync.field_changes import Change, FieldChange
from yamlsched.sync.hosts import Snapshot
from yamlsched.sync.in_use import FileVersion, Verdict

MAX_JSON_SLOTS = 100
"""Slots of one kind that the JSON document lists; the counts include all of them."""


class Level(StrEnum):
    """How important a note is: a warning is what most people would not expect."""

    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Hint:
    """An effect, as a sentence without its full stop."""

    level: Level
    text: str


def note(text: str) -> Hint:
    return Hint(Level.NOTE, text)


def warning(text: str) -> Hint:
    return Hint(Level.WARNING, text)


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as one side has it.

    ``job.enabled`` is what applies in the environment of the preview; ``is_enabled`` is the key
    ``enabled`` alone. ``environments`` is None if the job runs in all of them, or if they are not
    known. ``slots_of`` are the jobs whose slots it has, as it has no cron of its own.
    """

    job: Job
    is_enabled: bool
    environments: tuple[str, ...] | None
    slots_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a file, or the definitions of a database. What is None is unknown
    and not compared.

    ``invalid`` names the jobs of a base that have errors; they are not compared. ``retired`` may
    return. ``remark`` describes a base that has errors or does not exist.
    """

    name: str
    namespace: str
    entries: Mapping[str, Entry]
    timezone: str | None = None
    environments: Mapping[str, Any] | None = None
    retention: Retention | None = None
    paths: tuple[str, ...] | None = None
    queues: Mapping[str, Queue] | None = None
    limits: Mapping[str, Limit] | None = None
    notify: Mapping[str, NotifyTarget] | None = None
    invalid: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    remark: Hint | None = None


@dataclass(frozen=True, slots=True)
class MovedSlot:
    """A slot that gets another time on its local date."""

    before: datetime
    after: datetime

    @property
    def shift(self) -> timedelta:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """How the slots of a span change, each list in order of time.

    One end of a move may lie after the span. ``missed`` are those of ``removed`` whose new time on
    the same date has passed, so that the date has no run. ``remarks`` describe added slots that a
    clock change has moved. ``compared_until`` is set if the slots up to then were
    compared, because there are too many, or some in each few weeks only.
    """

    added: tuple[datetime, ...] = ()
    removed: tuple[datetime, ...] = ()
    moved: tuple[MovedSlot, ...] = ()
    missed: tuple[MovedSlot, ...] = ()
    remarks: tuple[tuple[datetime, str], ...] = ()
    compared_until: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.moved or self.compared_until)


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """A slot that will be skipped because its key was used: by the slot ``by``, or by an enqueued
    run (None).
    """

    scheduled_for: datetime
    key: str
    by: datetime | None


@dataclass(frozen=True, slots=True)
class JobChange:
    """One job that an edit changes.

    Slots a week (``fires_per_week_*``) are an average over the four weeks after the edit.
    ``looks_like`` is a removed job that this one may be under a new name.
    """

    job_type: str
    change: Change
    looks_like: str | None
    timezone: str
    fields: tuple[FieldChange, ...]
    fires_per_week_before: float
    fires_per_week_after: float
    next_slot_at: datetime | None
    slots: SlotChanges
    key_taken: tuple[KeyConflict, ...]
    notes: tuple[Hint, ...]


@dataclass(frozen=True, slots=True)
class NewPileUp:
    """Jobs that start in the same minute, ``times`` in the span; ``jobs_before`` is the most that
    did before.
    """

    jobs: tuple[str, ...]
    times: int
    first_at: datetime
    jobs_before: int


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that a sync would create. ``settles``: a definition that the file changes still owes
    it.
    """

    job_type: str
    idempotency_key: str
    scheduled_for: datetime
    run_at: datetime
    settles: bool


@dataclass(frozen=True, slots=True)
class SkippedSlots:
    """Consecutive slots that a sync would record as skipped."""

    job_type: str
    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str


@dataclass(frozen=True, slots=True)
class WaitingSlot:
    """A due slot that waits until the run of ``open_slot`` has finished (``overlap: wait``)."""

    job_type: str
    scheduled_for: datetime
    open_slot: datetime


@dataclass(frozen=True, slots=True)
class LeavingRuns:
    """Unfinished runs of a job that is not in the file. Those left at ``cancelled_at`` are
    cancelled.
    """

    job_type: str
    unfinished: int
    running: int
    cancelled_at: datetime


@dataclass(frozen=True, slots=True)
class PausedJob:
    """A job that an operator has paused, which no sync changes. Slots of ``followers`` have nothing
    to wait for.
    """

    job_type: str
    paused_at: datetime
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    followers: tuple[str, ...]


@dataclass(slots=True)
class SyncPlan:
    """What ``yamlsched sync`` would do in addition to changing jobs. ``verdict`` is what a tick
    would do with the file.

    ``returned`` are jobs that were retired before. ``unreadable`` has one line for each job whose
    slots cannot be computed here.
    """

    path: str
    version: FileVersion
    verdict: Verdict
    explanation: str  # why a tick would not apply the file; empty if it would
    snapshot: Snapshot  # with the file in use
    returned: list[str] = field(default_factory=list)
    runs: list[PlannedRun] = field(default_factory=list)
    skipped: list[SkippedSlots] = field(default_factory=list)
    waiting: list[WaitingSlot] = field(default_factory=list)
    leaving: list[LeavingRuns] = field(default_factory=list)
    paused: list[PausedJob] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Preview:
    """What replacing ``base`` by ``head`` at the instant ``at`` does; slots are those of (at,
    until].

    ``plan`` is set if the base is a database.
    """

    base: Side
    head: Side
    environment: str | None
    at: datetime
    until: datetime
    fields: tuple[FieldChange, ...]
    notes: tuple[Hint, ...]
    jobs: tuple[JobChange, ...]
    pile_ups: tuple[NewPileUp, ...]
    unchanged: int
    fires_per_week_before: float
    fires_per_week_after: float
    plan: SyncPlan | None = None

    @property
    def has_changes(self) -> bool:
        return bool(self.fields or self.jobs)

    @property
    def days(self) -> int:
        return (self.until - self.at).days

    def named(self, change: Change) -> tuple[str, ...]:
        """Return the names of the jobs with this change."""
        return tuple(job.job_type for job in self.jobs if job.change is change)


def document(preview: Preview) -> dict[str, Any]:
    """Return the members of the JSON document; the values are those of this module, datetimes
    included.
    """
    members = {
        "at": preview.at,
        "until": preview.until,
        "environment": preview.environment,
        "base": _side(preview.base),
        "head": _side(preview.head),
        "has_changes": preview.has_changes,
        "summary": {
            **{str(change): len(preview.named(change)) for change in Change},
            **{
                key: getattr(preview, key)
                for key in ("unchanged", "fires_per_week_before", "fires_per_week_after")
            },
        },
        "fields": preview.fields,
        "notes": preview.notes,
        "jobs": [_job(job) for job in preview.jobs],
        "pile_ups": preview.pile_ups,
    }
    plan = preview.plan
    if plan is None:
        return members
    snapshot = plan.snapshot
    in_use = snapshot.in_use and {
        "hash": snapshot.in_use_hash,
        "environment": snapshot.in_use_environment or None,
        "host": snapshot.in_use_host,
        "path": snapshot.in_use_path,
        "since": snapshot.in_use_since,
    }
    lists = ("returned", "runs", "skipped", "waiting", "leaving", "paused", "unreadable")
    return {
        "namespace": preview.head.namespace,
        "file": {
            "path": plan.path,
            "hash": plan.version.hash,
            "environment": plan.version.environment or None,
        },
        "in_use": in_use,
        "verdict": plan.verdict,
        "explanation": plan.explanation or None,
        **members,
        **{name: getattr(plan, name) for name in lists},
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "namespace": side.namespace,
        "timezone": side.timezone,
        "jobs": len(side.entries),
        "invalid_jobs": side.invalid,
    }


def _job(job: JobChange) -> dict[str, Any]:
    members: dict[str, Any] = {field.name: getattr(job, field.name) for field in fields(job)}
    members["slots"] = {
        "added_count": len(job.slots.added),
        "added": job.slots.added[:MAX_JSON_SLOTS],
        "removed_count": len(job.slots.removed),
        "removed": job.slots.removed[:MAX_JSON_SLOTS],
        "compared_until": job.slots.compared_until,
        "moved_count": len(job.slots.moved),
        "moved": job.slots.moved[:MAX_JSON_SLOTS],
    }
    return members
