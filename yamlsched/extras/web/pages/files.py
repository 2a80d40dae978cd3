"""``/files``: the file in force, the files that hosts present, and what was applied before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

import psycopg

from yamlsched.ask import edits
from yamlsched.ask.edits import ChangedAlike, Edit
from yamlsched.ask.edits import edits as edits_of
from yamlsched.ask.health import RefusedFile, refusal
from yamlsched.db.query import fetch, load
from yamlsched.extras.web.visit import Page, Visit
from yamlsched.schedule.field_changes import Change, before_and_after, field_name
from yamlsched.sync.files import FileVersion, Verdict
from yamlsched.sync.files import state as stored_state
from yamlsched.sync.in_force import decide, explain


@dataclass(frozen=True)
class HostFile:
    """The file that a host presented last at a path for an environment ('' for none)."""

    id: int
    host: str
    path: str
    environment: str
    hash: str
    overrides_namespace: bool
    yamlsched_version: str
    tzdata_version: str
    presented_since_at: datetime
    last_presented_at: datetime
    applied_at: datetime | None
    refused_at: datetime | None
    mistakes: int | None
    errors: list[str]
    is_presented: bool


@dataclass(frozen=True)
class AppliedFile:
    """A file that was applied, the latest time by this place."""

    id: int
    host: str
    path: str
    environment: str
    hash: str
    applied_at: datetime
    overrides_namespace: bool
    yamlsched_version: str
    tzdata_version: str
    retention: dict[str, str]


@dataclass(frozen=True)
class ChangedJobs:
    """Jobs that were added, changed or retired: how many, and the first names."""

    change: str
    jobs: int
    first: list[str]


def changed_since(
    connection: psycopg.Connection[Any], namespace: str, since: datetime
) -> list[ChangedJobs]:
    """Return how files that were applied after ``since`` changed the jobs."""
    parameters = {"namespace": namespace, "since": since}
    return fetch(connection, ChangedJobs, load("deployments")["changed_since"], parameters)


MAX_PLACES = 100
MAX_APPLIED = 50
"""Files of places that are known to have been applied."""
MAX_EDITS = 50
MAX_NAMESPACES = 100
MAX_EDITED_JOBS = 2_000
"""Jobs of the latest edits whose keys are read."""
MAX_COMPARED = 20
"""Files of hosts that are compared with the one in force: each needs a few statements."""
STATES = {
    Verdict.CURRENT: "in force",
    Verdict.RENEW: "in force",
    Verdict.APPLY: "to be applied",
    Verdict.HELD_BACK: "held back",
    Verdict.OTHER_ENVIRONMENT: "other environment",
    Verdict.OTHER_NAMESPACE: "other namespace",
}


@dataclass(frozen=True)
class Presented:
    """A place, how its file stands to the one in force in a few words, why, and how the jobs
    differ.

    ``changes`` are those of the files that were applied since this one was; None: this file was
    never applied, so its jobs are not known here.
    """

    place: HostFile
    state: str
    why: str = ""
    differs: bool = False
    changes: Sequence[ChangedJobs] | None = None


@dataclass(frozen=True)
class Deployments:
    """The file in force, the places that present files now, those that did, and the edits that were
    applied.
    """

    in_force: AppliedFile | None
    counts: Any  # jobs, and how many of them are disabled
    presented: Sequence[Presented]
    former: Sequence[HostFile]
    edits: Sequence[Edit]
    namespaces: Sequence[Any]  # with the file in force of each
    has_more_places: bool
    has_more_edits: bool
    has_more_namespaces: bool


def read(connection: psycopg.Connection[Any], namespace: str, now: datetime) -> Deployments:
    """Read the files of a namespace."""
    statements, parameters = load("deployments"), {"namespace": namespace}
    places = fetch(
        connection, HostFile, statements["places"], {**parameters, "limit": MAX_PLACES + 1}
    )
    applied = fetch(
        connection, AppliedFile, statements["applied"], {**parameters, "limit": MAX_APPLIED}
    )
    [counts] = connection.execute(statements["jobs"], parameters).fetchall()
    edits = edits_of(connection, namespace, limit=MAX_EDITS + 1)
    namespaces = connection.execute(
        statements["namespaces"], {"limit": MAX_NAMESPACES + 1}
    ).fetchall()
    in_force = applied[0] if applied else None
    known = {(file.hash, file.environment): file.applied_at for file in reversed(applied)}
    presented, compared = [], 0
    for place in places[:MAX_PLACES]:
        if not place.is_presented:
            continue
        is_same = in_force is not None and (place.hash, place.environment) == (
            in_force.hash,
            in_force.environment,
        )
        if is_same and place.refused_at is None:
            presented.append(Presented(place, STATES[Verdict.CURRENT]))
        elif compared < MAX_COMPARED:
            compared += 1
            applied_at = known.get((place.hash, place.environment))
            presented.append(_compared(connection, namespace, place, is_same, applied_at, now))
        else:
            presented.append(Presented(place, "another file", differs=True))
    return Deployments(
        in_force=in_force,
        counts=counts,
        presented=presented,
        former=[place for place in places[:MAX_PLACES] if not place.is_presented],
        edits=edits[:MAX_EDITS],
        namespaces=namespaces[:MAX_NAMESPACES],
        has_more_places=len(places) > MAX_PLACES,
        has_more_edits=len(edits) > MAX_EDITS,
        has_more_namespaces=len(namespaces) > MAX_NAMESPACES,
    )


def _compared(
    connection: psycopg.Connection[Any],
    namespace: str,
    place: HostFile,
    is_same: bool,
    applied_at: datetime | None,
    now: datetime,
) -> Presented:
    """Return what a tick of this place does with its file, as ``in_force`` decides it."""
    changes = (
        changed_since(connection, namespace, applied_at)
        if applied_at is not None and not is_same
        else None
    )
    if place.refused_at is not None and place.mistakes is not None:
        refused = RefusedFile(f"{place.host}:{place.path}", place.mistakes, place.refused_at)
        return Presented(place, "refused", refusal(refused), differs=not is_same, changes=changes)
    version = FileVersion(
        place.hash, place.environment, place.yamlsched_version, place.tzdata_version
    )
    presented = {
        **version._asdict(),
        "host": place.host,
        "path": place.path,
        "namespace_override": namespace if place.overrides_namespace else None,
    }
    state = stored_state(connection, namespace, presented, now)
    verdict = decide(state, version, at_once=False)
    is_to_apply = verdict in (Verdict.APPLY, Verdict.CURRENT, Verdict.RENEW)
    why = "" if is_to_apply else explain(verdict, state, place.path, version)
    return Presented(place, STATES[verdict], why, differs=not is_same, changes=changes)


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
    """The page. ``problems`` counts the hosts whose file is not the one in force."""

    found: Deployments
    problems: int
    history: Sequence[tuple[Edit, Sequence[ChangedJobs], Sequence[dict[str, Any]]]]
    commit = staticmethod(edits.commit)
    max_keys = 5


def show(visit: Visit) -> Files:
    current = read(visit.connection, visit.namespace, visit.now)
    totals = accumulate(sum(of["jobs"] for of in edit.jobs.values()) for edit in current.edits)
    few = [
        edit for edit, jobs in zip(current.edits, totals, strict=True) if jobs <= MAX_EDITED_JOBS
    ]
    groups = edits.changes(visit.connection, few)
    return Files(
        found=current,
        problems=sum(file.state != "in force" for file in current.presented),
        history=[
            (
                edit,
                [ChangedJobs(kind, **jobs) for kind, jobs in edit.jobs.items()],
                changed_keys(edit, groups.get(edit.id, ())),
            )
            for edit in current.edits
        ],
    )


PAGE = Page("/files", "files.html", show, title="Files")
