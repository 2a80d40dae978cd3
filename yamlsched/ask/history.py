"""Namespaces, jobs by their names, and everything about one run."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from yamlsched import durations
from yamlsched.ask import runs
from yamlsched.ask.edits import in_use
from yamlsched.ask.runs import RunDetails
from yamlsched.ask.trail import MAX_ACTIONS, trail
from yamlsched.db.query import execute, fetch, fetch_column
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.handler.once import settle_command
from yamlsched.runs import progress
from yamlsched.runs.lifecycle import Status
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule import include
from yamlsched.schedule.load import load as load_file
from yamlsched.schedule.load import timezone_of_file
from yamlsched.sync import definitions as stored_definitions
from yamlsched.text import did_you_mean
from yamlsched.timetable.times import rfc3339

MAX_CHILDREN = 100
"""Runs enqueued by a run that are shown."""
MAX_ID_DIGITS = 18


def timezone_of(
    connection: psycopg.Connection[Any], namespace: str, jobs: Sequence[str], file: Path
) -> str:
    """Return the time zone of times without an offset: that of ``jobs`` if they share one, else
    that of ``file``.

    Only jobs that have a cron have a time zone.
    """
    definitions = [stored_definitions.find(connection, namespace, job) for job in jobs]
    zones = {
        definition.timezone
        for definition in definitions
        if definition is not None and definition.schedule
    }
    if len(zones) == 1:
        return zones.pop()

    return timezone_of_file(file)


def namespace_of(connection: psycopg.Connection[Any], namespace: str | None, file: Path) -> str:
    """Return the namespace to work in: ``namespace`` if it is set, that of ``file``, or the only
    one in the database.

    Raises Refused if none of these determines it, EnvironmentFailed if a file other than
    ./schedules.yaml is missing.
    """
    if namespace:
        return namespace
    if file.is_file():
        data, included = include.read(file)
        place = {"hash": schedule_file.digest(data, included), **_place(file)}
        with suppress(psycopg.errors.InsufficientPrivilege):  # a role that may only enqueue
            [known] = fetch_column(connection, "history.namespace_of_file", **place)
            return known or _namespace_in(data, file)
        return _namespace_in(data, file)
    if file != Path("schedules.yaml"):
        raise EnvironmentFailed(f"{file} does not exist: correct --file, or pass --namespace")
    try:
        known = runs.namespaces(connection)
    except psycopg.errors.InsufficientPrivilege:
        return "default"
    if len(known) > 1:
        raise Refused(
            f"the database has several namespaces ({', '.join(known)}): pass --namespace or --file"
        )
    return known[0] if known else "default"


def place_of(
    connection: psycopg.Connection[Any], namespace: str, file: Path
) -> tuple[bool, str] | None:
    """Return whether an option names ``namespace`` for ``file`` on this host, and its environment.
    None to a role that may only enqueue.
    """
    with suppress(psycopg.errors.InsufficientPrivilege):
        given = {"namespace": namespace, **_place(file)}
        [row] = execute(connection, "history.place", **given).fetchall()
        return bool(row.is_named), str(row.environment)
    return None


def _place(file: Path) -> dict[str, str]:
    return {"host": socket.gethostname(), "path": str(schedule_file.absolute(file))}


def namespace_in_file(file: Path) -> str:
    """Return the namespace that a tick without --namespace has. Raises Refused if the file has no
    valid one.
    """
    return _namespace_in(schedule_file.read(file), file)


def _namespace_in(data: bytes, file: Path) -> str:

    namespace = load_file(data, str(file), None).namespace
    if namespace is None:
        raise Refused(
            f'{file} has no valid namespace: pass --namespace, and run "yamlsched validate" to'
            " see why"
        )
    return namespace


def definitions(
    connection: psycopg.Connection[Any],
    namespace: str,
    jobs: Sequence[str],
    tags: Sequence[str],
    owner: str = "",
) -> list[int] | None:
    """Return the ids of the jobs named ``jobs`` that have all ``tags`` and the ``owner``; None if
    all are empty.

    Raises Refused for a name, a tag or an owner that no job has.
    """
    if not jobs and not tags and not owner:
        return None
    known = runs.jobs(connection, namespace)
    names = {job.job_type for job in known}
    for name in jobs:
        if name not in names:
            raise unknown_job(name, namespace, sorted(names))
    known_tags = {tag for job in known for tag in job.tags}
    _refuse_unknown("tag", tags, known_tags, namespace)
    _refuse_unknown("owner", [owner] if owner else [], {job.owner for job in known}, namespace)
    wanted = [job for job in known if not jobs or job.job_type in jobs]
    return [job.id for job in wanted if set(tags) <= set(job.tags) and owner in ("", job.owner)]


def _refuse_unknown(what: str, names: Sequence[str], known: set[str], namespace: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known - {""})
            message = f'no job in namespace "{namespace}" has the {what} "{name}". {hint}'
            raise Refused(message.strip())


def present_jobs(
    connection: psycopg.Connection[Any], namespace: str, names: Sequence[str], tags: Sequence[str]
) -> list[int]:
    """Return the ids of the jobs with these names and tags, or of all jobs. Retired jobs only count
    if named.
    """
    selected = definitions(connection, namespace, names, tags)
    present = {
        job.id
        for job in runs.jobs(connection, namespace)
        if job.retired_at is None or job.job_type in names
    }
    return sorted(present if selected is None else present & set(selected))


def unknown_job(name: str, namespace: str, known: Sequence[str]) -> Refused:
    """Return the error for the name of a job that does not exist, with the closest one
    that does.
    """
    hint = did_you_mean(name, known, "A job is known after its first sync.")
    return Refused(f'no job "{name}" in namespace "{namespace}". {hint}')


def is_id(name: str) -> bool:
    """Return whether ``name`` is an id; anything but digits is a key."""
    return name.isascii() and name.isdigit()


def find(connection: psycopg.Connection[Any], namespace: str | None, name: str) -> int:
    """Return the id of the run of ``namespace`` with the id or key ``name``. Without a namespace it
    must be an id, which is not looked up.

    Raises Refused if there is no such run, or it was pruned.
    """
    if is_id(name):
        if len(name) > MAX_ID_DIGITS:
            raise Refused(f"there is no run {name}: run ids are shorter")
        run = None if namespace is None else runs.run(connection, int(name))
        if run is not None and run.namespace != namespace:
            raise Refused(f'there is no run {name} in namespace "{namespace}"')
        return int(name)
    assert namespace is not None
    row = runs.id_of_key(connection, namespace, name)
    if row is None and name in stored_definitions.names(connection, namespace):
        list_them = f"yamlsched runs --job {name}"
        retry_them = f"yamlsched retry --dead --job {name}"
        raise Refused(
            f'"{name}" is a job, and no run has this key. List its runs: {list_them}. Retry the'
            f" dead: {retry_them}"
        )
    if row is None:
        pattern = shlex.quote(name[: max(1, len(name) // 2)] + "*")
        raise Refused(
            f'no run has the key "{name}" in namespace "{namespace}". Search: yamlsched runs --key'
            f" {pattern}"
        )
    id, pruned_at = row
    if pruned_at is not None:
        raise Refused(
            f'run {id} with the key "{name}" was pruned on {pruned_at:%Y-%m-%d}: only its key is'
            " kept"
        )
    return id


def run_details(
    connection: psycopg.Connection[Any],
    id: int,
    *,
    attempt: int | None = None,
    all_texts: bool = True,
) -> RunDetails:
    """Return everything about the run ``id``. Raises Refused if there is none.

    Without ``all_texts``, stacks and outputs are read of the first attempt, of ``attempt`` and of
    the newest only: those of 100 attempts are more than a page can show.
    """

    run = runs.run(connection, id)
    if run is None:
        raise Refused(f"run {id} does not exist, or was pruned")
    newest = run.attempts - 1 if run.status == Status.RUNNING else run.attempts
    texts = (
        None if all_texts else [1, newest, run.attempts, *([] if attempt is None else [attempt])]
    )
    reported = progress.of_runs(connection, [id], only_latest=False).get(id, [])
    latest = [each for each in reported if each.worker == run.worker]
    parameters = {"id": id, "texts": texts, "limit": MAX_CHILDREN, "of_hooks": False}
    return RunDetails(
        run=replace(
            run, progress=next((each for each in latest if each.attempt == run.attempts), None)
        ),
        failures=fetch(connection, runs.FailedAttempt, "history.failures", **parameters),
        outputs=fetch(connection, runs.KeptOutput, "history.outputs", **parameters),
        progress=reported,
        effects=fetch(connection, runs.RunEffect, "history.effects", **parameters),
        children=fetch(connection, runs.ChildRun, "history.children", **parameters),
        hooks=fetch(
            connection, runs.ChildRun, "history.children", **parameters | {"of_hooks": True}
        ),
        parent=runs.run(connection, run.parent_id) if run.parent_id is not None else None,
        actions=trail(connection, run.namespace, target=f"run:{id}", limit=MAX_ACTIONS)[::-1],
        edits=in_use(connection, run.namespace, run.created_at, run.job_type),
        texts=texts,
    )


def kept_output(details: RunDetails, attempt: int | None = None) -> runs.KeptOutput:
    """Return what the attempt printed, or the last one that has kept output. Raises Refused if none
    is kept.
    """
    outputs = [output for output in details.outputs if attempt in (None, output.attempt)]
    if outputs:
        return outputs[-1]
    run, which = (
        details.run,
        f"run {details.run.id}" + ("" if attempt is None else f", attempt {attempt}"),
    )
    if attempt is not None and details.outputs:
        known = ", ".join(map(str, sorted({output.attempt for output in details.outputs})))
        raise Refused(f"no output of {which} is kept. Attempts with output: {known}")
    why = (
        "it printed nothing before its lease was last renewed, or output.keep of its job excludes"
        f" it (now: {run.keeps_output})"
    )
    raise Refused(f"no output of {which} is kept: {why}")


def waits_for(run: runs.StoredRun, now: datetime) -> str:
    """Return what follows the status of an unfinished run: its worker and lease, or when it is due;
    else "".
    """
    if run.status == "running":
        assert run.locked_until is not None
        lease = "which stopped answering: its lease ended at"
        if run.locked_until >= now:
            lease = "lease until"
        return f" on {run.worker}, {lease} {rfc3339(run.locked_until, 'seconds')}"
    words = [run.waits] if run.waits else []
    if not words and run.finished_at is None:
        is_past = run.run_at <= now
        span = durations.approximate(now - run.run_at if is_past else run.run_at - now)
        words = [
            f"due {rfc3339(run.run_at, 'seconds')} ({f'{span} ago' if is_past else f'in {span}'})"
        ]
    if run.expires_at is not None and run.finished_at is None:
        words.append(f"expires {rfc3339(run.expires_at, 'seconds')}")
    return "".join(f", {word}" for word in words)


def next_step(run: runs.StoredRun, in_doubt: Sequence[str] = ()) -> str:
    """Return what an operator can do about ``run`` now; empty if nothing needs to be done.

    ``in_doubt`` are the keys of its effects that are in doubt.
    """
    is_over = run.status in (Status.DEAD, Status.CANCELLED)
    is_waiting = run.status in (Status.QUEUED, Status.FAILED)
    if in_doubt and (is_over or is_waiting):
        settle = "; ".join(settle_command(run.namespace, key) for key in in_doubt)
        return f"{settle}; then yamlsched retry {run.id}"
    if is_over:
        return f"yamlsched retry {run.id}"
    if is_waiting and not (run.enabled and run.retired_at is None):
        return "its job is not enabled in schedules.yaml: no worker claims it"
    if is_waiting and run.paused:
        return f"its job is paused: yamlsched resume {run.job_type}"
    if run.status == Status.FAILED:
        return f"it is retried automatically; to retry it now: yamlsched retry {run.id}"
    return ""
