"""Which runs there are, and what became of one."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import psycopg

from yamlsched.definitions import schedule_file
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.handling.once import settle_command
from yamlsched.runs import Status
from yamlsched.store import history

MAX_CHILDREN = 100
"""How many of the runs that a run enqueued are shown."""


@dataclass(frozen=True)
class Filter:
    """Which runs are meant. An empty part chooses nothing, so all are."""

    jobs: Sequence[str] = ()
    tags: Sequence[str] = ()
    statuses: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None  # `*` stands for any text
    worker: str | None = None  # likewise; a name without one is that of a host, or a host and process


@dataclass(frozen=True)
class RunDetails:
    """One run, and all that belongs to it."""

    run: history.StoredRun
    failures: list[history.FailedAttempt]
    effects: list[history.RunEffect]
    children: list[history.ChildRun]
    parent: history.StoredRun | None
    actions: list[history.OperatorAction]


def namespace_of(connection: psycopg.Connection[Any], given: str | None, file: Path) -> str:
    """Return the namespace to work in: the one ``given``, that of ``file``, or the only one there is.

    Raises Refused where none of these tells, EnvironmentFailed where a file other than ./schedules.yaml is missing.
    """
    if given:
        return given
    if file.is_file():
        data = schedule_file.read(file)
        place = (hashlib.sha256(data).hexdigest(), socket.gethostname(), os.path.abspath(file))
        with suppress(psycopg.errors.InsufficientPrivilege):  # a role that may only enqueue
            return history.namespace_of_file(connection, *place) or _namespace_within(data, file)
        return _namespace_within(data, file)
    if file != Path("schedules.yaml"):
        raise EnvironmentFailed(f"{file} does not exist: correct --file, or pass --namespace")
    try:
        known = history.namespaces(connection)
    except psycopg.errors.InsufficientPrivilege:
        return "default"
    if len(known) > 1:
        raise Refused(f"the database has several namespaces ({', '.join(known)}): pass --namespace or --file")
    return known[0] if known else "default"


def _namespace_within(data: bytes, file: Path) -> str:
    from yamlsched.definitions.load import load

    namespace = load(data, str(file), None).namespace
    if namespace is None:
        raise Refused(f'{file} has no valid namespace: pass --namespace, and run "yamlsched validate" to see why')
    return namespace


def definitions(
    connection: psycopg.Connection[Any], namespace: str, jobs: Sequence[str], tags: Sequence[str]
) -> list[int] | None:
    """Return the ids of the jobs that ``jobs`` and ``tags`` choose; None where neither says anything.

    Raises Refused for a name or a tag that no job has.
    """
    if not jobs and not tags:
        return None
    known = history.jobs(connection, namespace)
    for name in jobs:
        if name not in {job.job_type for job in known}:
            raise unknown_job(name, namespace, [job.job_type for job in known])
    for tag in tags:
        if not any(tag in job.tags for job in known):
            raise Refused(f'no job in namespace "{namespace}" has the tag "{tag}"')
    return [job.id for job in known if (not jobs or job.job_type in jobs) and set(tags) <= set(job.tags)]


def unknown_job(name: str, namespace: str, known: list[str]) -> Refused:
    """Return the error that says so, with the nearest name there is."""
    near = get_close_matches(name, known, n=1)
    hint = f'. Did you mean "{near[0]}"?' if near else ": a job is known after its first sync"
    return Refused(f'no job "{name}" in namespace "{namespace}"{hint}')


def runs(
    connection: psycopg.Connection[Any], namespace: str, chosen: Filter, limit: int, before: int | None = None
) -> list[history.RunRow]:
    """Return up to ``limit`` runs of ``chosen``, newest first; ``before`` is the last id of the page before."""
    key, worker = chosen.key, chosen.worker
    return history.runs(
        connection,
        namespace,
        limit=limit,
        definitions=definitions(connection, namespace, chosen.jobs, chosen.tags),
        statuses=chosen.statuses,
        since=chosen.since,
        until=chosen.until,
        key=key if key and "*" not in key else None,
        key_like=_like(key) if key and "*" in key else None,
        worker=_like(worker if "*" in worker else f"{worker}:*") if worker else None,
        before=before,
    )


def _like(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def is_id(name: str) -> bool:
    """Say whether ``name`` is an id; anything but digits is a key."""
    return name.isascii() and name.isdigit()


def find(connection: psycopg.Connection[Any], namespace: str, name: str) -> int:
    """Return the id of the run that ``name`` means: digits are an id, anything else is a key.

    Raises Refused where there is no such run, or it has been pruned.
    """
    if is_id(name):
        if len(name) > 18:
            raise Refused(f"there is no run {name}: run ids are shorter")
        return int(name)
    found = history.id_of_key(connection, namespace, name)
    if found is None:
        raise Refused(
            f'no run has the key "{name}" in namespace "{namespace}": "yamlsched runs --key" finds by pattern'
        )
    id, pruned_at = found
    if pruned_at is not None:
        raise Refused(f'run {id} with the key "{name}" was pruned on {pruned_at:%Y-%m-%d}: only its key is kept')
    return id


def run_details(connection: psycopg.Connection[Any], id: int) -> RunDetails:
    """Return everything about the run ``id``; raises Refused where there is none."""
    run = history.run(connection, id)
    if run is None:
        raise Refused(f"there is no run {id}, or it was pruned")
    return RunDetails(
        run=run,
        failures=history.failures(connection, id),
        effects=history.effects(connection, id),
        children=history.children(connection, id, MAX_CHILDREN),
        parent=history.run(connection, run.parent_id) if run.parent_id is not None else None,
        actions=history.actions(connection, run.namespace, id),
    )


def next_step(run: history.StoredRun, in_doubt: Sequence[str] = ()) -> str:
    """Return what a person may do about ``run`` now; empty where it takes its course.

    ``in_doubt`` are the keys of its effects that are.
    """
    if in_doubt and run.status in (Status.DEAD, Status.CANCELLED, Status.FAILED, Status.QUEUED):
        settle = "; ".join(settle_command(run.namespace, key) for key in in_doubt)
        return f"{settle}; then yamlsched retry {run.id}"
    if run.status in (Status.DEAD, Status.CANCELLED):
        return f"yamlsched retry {run.id}"
    if run.status in (Status.QUEUED, Status.FAILED) and run.retired_at is not None:
        return "its job was removed from schedules.yaml: nothing claims it, and it is cancelled after a day"
    if run.status in (Status.QUEUED, Status.FAILED) and not run.enabled:
        return "its job is disabled in schedules.yaml: nothing claims it"
    if run.status in (Status.QUEUED, Status.FAILED) and run.paused:
        return f"its job is paused: yamlsched resume {run.job_type}"
    if run.status == Status.FAILED:
        return f"it is retried automatically; to retry it now: yamlsched retry {run.id}"
    return ""
