"""Edits on record: which commit was in use, and who changed what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.db.query import fetch
from yamlsched.schedule.job import KEYS
from yamlsched.sync.due import CHANGES
from yamlsched.sync.field_changes import FieldChange
from yamlsched.sync.revision import short
from yamlsched.timetable.times import rfc3339


@dataclass(frozen=True)
class Edit:
    """A file that was applied.

    ``commit``, ``author`` and ``subject`` are None if they are not known; a dirty file differs from
    its commit. ``jobs`` has how many were added, changed, retired and returned, and the first
    names: ``{"added": {"jobs": 2, "first": ["a", "b"]}}``. ``before`` and ``after`` have the keys
    outside of jobs that changed; ``before`` is None for the first file of a namespace.
    """

    id: int
    namespace: str
    environment: str
    hash: str
    host: str
    path: str
    yamlsched_version: str
    commit: str | None
    is_dirty: bool
    author: str | None
    subject: str | None
    jobs: dict[str, dict[str, Any]]
    before: dict[str, Any] | None
    after: dict[str, Any]
    applied_at: datetime


@dataclass(frozen=True)
class ChangedAlike:
    """Jobs that an edit changed in the same way: how many, the first names, and the keys before and
    after.

    ``groups`` is how many such groups the edit has.
    """

    edit_id: int
    change: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    jobs: int
    first: list[str]
    groups: int


MAX_GROUPS = 50
"""Groups of jobs that one edit changed in the same way that are read."""
MAX_NAMES = 20
"""Names of jobs in each group."""
KEY_ORDER = {key: nth for nth, key in enumerate(KEYS)}


def edits(
    connection: psycopg.Connection[Any],
    namespace: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    limit: int = 100,
    job_type: str | None = None,
    before: int | None = None,
) -> list[Edit]:
    """Return up to ``limit`` edits that were applied in [since, until), the newest first.

    ``job_type`` is the name of a job: only edits that changed it. ``before`` is the id of an edit:
    only earlier ones.
    """
    parameters = {
        "namespace": namespace,
        "since": since,
        "until": until,
        "job_type": job_type,
        "before": before,
    }
    return fetch(connection, Edit, "edits.edits", **parameters, limit=limit)


def changes(
    connection: psycopg.Connection[Any],
    edits: Sequence[Edit],
    *,
    job_type: str | None = None,
    limit: int = MAX_GROUPS,
    names: int = MAX_NAMES,
) -> dict[int, list[ChangedAlike]]:
    """Return how edits changed jobs, by the id of the edit; jobs that were changed alike are one
    group.

    Up to ``limit`` groups of each edit are read, with up to ``names`` names in each.
    """
    groups: dict[int, list[ChangedAlike]] = {edit.id: [] for edit in edits}
    parameters = {"ids": list(groups), "limit": limit, "names": names, "job_type": job_type}
    for group in fetch(connection, ChangedAlike, "edits.changes", **parameters):
        groups[group.edit_id].append(group)
    return groups


@dataclass(frozen=True)
class InUse:
    """The edit that was in use at an instant, and the latest one until then that
    changed the job.
    """

    file: Edit
    job: Edit | None

    def is_before(self, at: datetime) -> bool:
        """Return whether both were applied before an instant: up to a later one they are the
        latest.
        """
        return max(edit.applied_at for edit in (self.file, self.job or self.file)) < at


def in_use(
    connection: psycopg.Connection[Any],
    namespace: str,
    at: datetime | None = None,
    job_type: str | None = None,
) -> InUse | None:
    """Return the edit in use for what was created at an instant; None for the instant: now. None
    before any edit.

    What was created at the very instant of an edit is what the definitions before it still owed.
    """
    latest = edits(connection, namespace, until=at, limit=1)
    of_job = edits(connection, namespace, until=at, limit=1, job_type=job_type) if job_type else []
    return InUse(latest[0], next(iter(of_job), None)) if latest else None


def commit(edit: Any) -> str | None:
    """Return the commit of an edit, or of a file in use, as it is shown; None if it is not
    known.
    """
    return short(edit.commit, edit.is_dirty)


def label(edit: Any) -> str:
    """Return what identifies an edit: its commit, author and subject as far as they are known, else
    the hash.
    """
    named = commit(edit)
    head = f"commit {named}" if named else f"file {edit.hash[:8]}"
    head += f" by {edit.author}" if edit.author else ""
    return f'{head}: "{edit.subject}"' if edit.subject else head


def sentences(in_use: InUse) -> tuple[str, str]:
    """Return which edit was in use, and which one changed the job last: empty if that is the same
    one.
    """
    file = applied(in_use.file)
    if in_use.job is None:
        return file, ""
    if in_use.job.id == in_use.file.id:
        return f"{file}, which changed this job", ""
    return file, applied(in_use.job)


def applied(edit: Edit) -> str:
    return f"{label(edit)} (applied {rfc3339(edit.applied_at, 'seconds')})"


def counts(jobs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many jobs an edit added, changed, retired and brought back.

    >>> counts({"added": {"jobs": 2, "first": ["a", "b"]}, "retired": {"jobs": 1, "first": ["c"]}})
    '2 jobs added, 1 retired'
    """
    numbers = [(kind, jobs[kind]["jobs"]) for kind in CHANGES if kind in jobs]
    parts = [
        f"{number} {'' if nth else 'job ' if number == 1 else 'jobs '}{kind}"
        for nth, (kind, number) in enumerate(numbers)
    ]
    return ", ".join(parts) or "no job changed"


def fields(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[FieldChange]:
    """Return the keys of a change in the order in which a reviewer reads them."""
    names = {**(before or {}), **(after or {})}
    keys = [FieldChange(name, (before or {}).get(name), (after or {}).get(name)) for name in names]
    return sorted(
        keys,
        key=lambda key: (KEY_ORDER.get(key.field.partition(".")[0], len(KEY_ORDER)), key.field),
    )
