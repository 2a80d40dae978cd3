"""``/files``: the file in use, the files of all places, and what was applied before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

import psycopg

from yamlsched.ask import edits
from yamlsched.ask.edits import ChangedAlike, Edit
from yamlsched.ask.places import RefusedFile
from yamlsched.db.query import execute, fetch
from yamlsched.extras.web.visit import Page, Visit
from yamlsched.sync.field_changes import Change, before_and_after, field_name


@dataclass(frozen=True)
class ChangedJobs:
    """Jobs that were added, changed or retired: how many, and the first names."""

    change: str
    jobs: int
    first: list[str]


def changed_since(
    connection: psycopg.Connection[Any], namespace: str, since: datetime
) -> list[ChangedJobs]:
    """Return how jobs were changed by the files that came after the one in use until ``since``."""
    parameters = {"namespace": namespace, "since": since}
    return fetch(connection, ChangedJobs, "hosts.changed_since", **parameters)


MAX_PLACES = 100
MAX_EDITS = 50
MAX_EDITED_JOBS = 2_000
"""Jobs of the latest edits whose keys are read."""
MAX_COMPARED = 20
"""Files of places that are compared with the one in use: each needs a statement."""
SUPERSEDED = "This file is not applied: another host uses the file that superseded it."


@dataclass(frozen=True)
class ComparedPlace:
    """A place, why its file is not applied, and how the jobs differ from those of the file in use.

    ``changes`` are those of the files that came after this one; None: this file was never in use,
    so its jobs are not known here.
    """

    place: Any  # a row of the statement
    why: str
    differs: bool
    changes: Sequence[ChangedJobs] | None = None


def _compared(connection: psycopg.Connection[Any], place: Any, may_differ: bool) -> ComparedPlace:
    """Return why the file of a place is not applied and, if ``may_differ``, how its jobs differ."""
    changes, differs, why = None, may_differ and not place.has_file_in_use, ""
    if differs and place.used_until is not None:
        changes = changed_since(connection, place.namespace, place.used_until)
    if place.refused_at is not None:
        why = RefusedFile(
            f"{place.host}:{place.path}",
            len(place.errors),
            place.refused_at,
            place.errors[0] if place.state != "refused" else None,
            place.state != "refused",
        ).sentence
    elif place.state == "superseded":
        why = SUPERSEDED
    return ComparedPlace(place, why, differs, changes)


def changed_keys(edit: Edit, groups: Sequence[ChangedAlike]) -> list[dict[str, Any]]:
    """Return the keys that an edit changed, in words: of how many jobs, with the first names;
    outside of jobs last.
    """
    outside = Change.ADDED if edit.before is None else Change.CHANGED
    parts: list[Any] = [
        (group, Change.CHANGED, group.jobs, group.first)
        for group in groups
        if group.change == Change.CHANGED
    ]
    return [
        {
            "key": field_name(key),
            "change": before_and_after(key, kind),
            "jobs": jobs,
            "first": first,
        }
        for part, kind, jobs, first in (*parts, (edit, outside, 0, ()))
        for key in edits.fields(part.before, part.after)
    ]


@dataclass(frozen=True)
class Files:
    """The page: the file in use, the places that count, those that did, and the edits that were
    applied. ``problems`` counts the places whose file is not the one in use.
    """

    in_use: Any  # a row, None without one
    counts: Any  # jobs, and how many of them are disabled
    places: Sequence[ComparedPlace]
    former: Sequence[Any]
    problems: int
    history: Sequence[tuple[Edit, Sequence[ChangedJobs], Sequence[dict[str, Any]]]]
    has_more_places: bool
    has_more_edits: bool
    commit = staticmethod(edits.commit)
    max_keys = 5


def show(visit: Visit) -> Files:
    connection = visit.connection
    parameters = {"namespace": visit.namespace, "limit": MAX_PLACES + 1, "now": visit.now}
    stored = execute(connection, "hosts.places", **parameters).fetchall()
    in_use = execute(connection, "hosts.in_use", **parameters).fetchone()
    [counts] = execute(connection, "hosts.job_counts", **parameters).fetchall()
    compared: list[ComparedPlace] = []
    for place in stored[:MAX_PLACES]:
        if place.counts:
            may_differ = sum(each.differs for each in compared) < MAX_COMPARED
            compared.append(_compared(connection, place, may_differ))
    latest = edits.edits(connection, visit.namespace, limit=MAX_EDITS + 1)
    listed = latest[:MAX_EDITS]
    totals = accumulate(sum(of["jobs"] for of in edit.jobs.values()) for edit in listed)
    few = [edit for edit, jobs in zip(listed, totals, strict=True) if jobs <= MAX_EDITED_JOBS]
    groups = edits.changes(connection, few)
    return Files(
        in_use=in_use,
        counts=counts,
        places=compared,
        former=[place for place in stored[:MAX_PLACES] if not place.counts],
        problems=sum(one.place.state != "in use" for one in compared),
        history=[
            (
                edit,
                [ChangedJobs(kind, **jobs) for kind, jobs in edit.jobs.items()],
                changed_keys(edit, groups.get(edit.id, ())),
            )
            for edit in listed
        ],
        has_more_places=len(stored) > MAX_PLACES,
        has_more_edits=len(latest) > MAX_EDITS,
    )


PAGE = Page("/files", "files.html", show)
