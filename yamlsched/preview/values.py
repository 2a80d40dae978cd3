"""What is compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from yamlsched.definitions.diagnostic import ERROR
from yamlsched.definitions.job import Job, Retention
from yamlsched.definitions.load import Loaded

ENVIRONMENT_UNKNOWN = "YS116"


class Change(StrEnum):
    """What an edit does to a job."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Level(StrEnum):
    """How important a note is: a warning is what most people would not expect."""

    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as one side has it. ``job.enabled`` is what holds there; ``is_enabled`` is git's switch alone.

    ``environments`` is None where the job runs in all of them, or where they are not known.
    """

    job: Job
    is_enabled: bool
    environments: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Note:
    """An effect, as a sentence."""

    text: str
    level: Level = Level.NOTE


@dataclass(frozen=True, slots=True)
class Side:
    """A file, or the definitions of a database. What is None is not known there, and not compared.

    ``invalid`` are the jobs of a base with errors that cannot be compared. ``remark`` is what is to be said of such a
    base, or of one that does not exist.
    """

    name: str
    namespace: str
    entries: Mapping[str, Entry]
    timezone: str | None = None
    environments: tuple[str, ...] | None = None
    retention: Retention | None = None
    paths: tuple[str, ...] | None = None
    invalid: tuple[str, ...] = ()
    remark: Note | None = None


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A key of the file before and after, as plain JSON values; None stands for a key that is not there."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Moved:
    """A slot that the edit puts elsewhere on its local date."""

    before: datetime
    after: datetime

    @property
    def shift(self) -> timedelta:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """What becomes of the slots of a span, each in order of time.

    One end of a move may lie after the span. ``passed`` are those of ``removed`` whose new time on the same date is
    over at the instant of the edit, so that the date goes without. ``remarks`` say where a clock change has moved slots
    that are added. ``compared_until`` is set for a job with so many slots that only those up to then were compared.
    """

    added: tuple[datetime, ...] = ()
    removed: tuple[datetime, ...] = ()
    moved: tuple[Moved, ...] = ()
    passed: tuple[Moved, ...] = ()
    remarks: tuple[tuple[datetime, str], ...] = ()
    compared_until: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.moved or self.compared_until)


@dataclass(frozen=True, slots=True)
class Taken:
    """A slot that will be skipped, because its key was used: by the slot ``by``, or by something else (None)."""

    slot: datetime
    key: str
    by: datetime | None


@dataclass(frozen=True, slots=True)
class JobChange:
    """One job that an edit touches.

    Fires per week are an average over the four weeks after the edit. ``looks_like`` is the job that went when this
    one came, if that may be the same under a new name.
    """

    job_type: str
    change: Change
    fields: tuple[FieldChange, ...]
    timezone: str
    per_week_before: float
    per_week_after: float
    next_slot_at: datetime | None
    slots: SlotChanges
    taken: tuple[Taken, ...]
    notes: tuple[Note, ...]
    looks_like: str | None = None


@dataclass(frozen=True, slots=True)
class PileUp:
    """Jobs that start in one minute, ``times`` in the span, ``first_at`` for the first time; fewer did before."""

    jobs: tuple[str, ...]
    times: int
    first_at: datetime
    jobs_before: int


@dataclass(frozen=True, slots=True)
class Preview:
    """All that an edit does if it is applied ``at``, with the slots of (at, until]."""

    base: Side
    head: Side
    environment: str | None
    at: datetime
    until: datetime
    fields: tuple[FieldChange, ...]
    notes: tuple[Note, ...]
    jobs: tuple[JobChange, ...]
    pile_ups: tuple[PileUp, ...]
    unchanged: int
    per_week_before: float
    per_week_after: float

    @property
    def has_changes(self) -> bool:
        return bool(self.fields or self.jobs)

    @property
    def days(self) -> int:
        return (self.until - self.at).days

    def named(self, change: Change) -> tuple[str, ...]:
        """Return the names of the jobs to which this happens."""
        return tuple(job.job_type for job in self.jobs if job.change is change)


def side(name: str, loaded: Loaded, environment: str | None) -> Side:
    """Return the side that a valid file is.

    Without an environment a job that names its own counts as enabled: a review is about where it runs.
    """
    entries = {job.name: _entry(loaded, job, environment) for job in loaded.jobs.values()}
    namespace = loaded.namespace or "default"
    return Side(name, namespace, entries, loaded.timezone, loaded.environments, loaded.retention, loaded.paths)


def empty_side(name: str, head: Side) -> Side:
    """Return the side that stands for a file that does not exist: without jobs, and with nothing else to compare."""
    remark = Note(
        f"{name} does not exist: every job is new. If the file had another name there, pass it as REVISION:path"
    )
    return Side(name, head.namespace, {}, remark=remark)


def base_side(name: str, loaded: Loaded, environment: str | None, head: Side) -> Side:
    """Return the side that a base is, valid or not; of an invalid one, what is valid.

    The pull request that repairs a file is compared with the broken one.
    """
    # an environment that comes with the edit is not an error of the base
    errors = [one for one in loaded.diagnostics if one.severity == ERROR and one.code != ENVIRONMENT_UNKNOWN]
    valid = side(name, loaded, environment)
    if not errors:
        return valid

    def is_known(key: str) -> bool:
        return ("version",) not in loaded.found.wrong and loaded.is_known(key)

    invalid = tuple(name for name in loaded.entries if name not in loaded.jobs)
    what = f"{len(errors)} error{'s' * (len(errors) > 1)}"
    first = f"line {errors[0].line}: {errors[0].message}"
    return replace(
        valid,
        namespace=valid.namespace if is_known("namespace") else head.namespace,
        timezone=valid.timezone if is_known("timezone") else None,
        environments=valid.environments if is_known("environments") else None,
        retention=valid.retention if is_known("retention") else None,
        paths=valid.paths if is_known("paths") else None,
        invalid=invalid,
        remark=Note(f"{name} has {what}, and only its valid jobs are compared ({first})", Level.WARNING),
    )


def _entry(loaded: Loaded, job: Job, environment: str | None) -> Entry:
    enabled, environments = _written(loaded, job.name, "enabled"), _written(loaded, job.name, "environments")
    is_enabled = True if enabled is None else bool(enabled)
    names = None if environments is None else tuple(str(item) for item in environments)
    is_elsewhere = environment is None and job.enabled is not is_enabled
    return Entry(replace(job, enabled=is_enabled) if is_elsewhere else job, is_enabled, names)


def _written(loaded: Loaded, job: str, key: str) -> Any:
    spot = loaded.written(job, key)
    return None if spot is None else spot.node.plain()
