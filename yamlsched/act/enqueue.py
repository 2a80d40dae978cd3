"""What operators enqueue: a run of a job, which is recorded in operator_actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg

from yamlsched.act import audit
from yamlsched.act.audit import ActionRecord
from yamlsched.ask import runs as history
from yamlsched.ask.history import timezone_of, unknown_job
from yamlsched.db import query
from yamlsched.errors import Refused
from yamlsched.runs import enqueue as client
from yamlsched.timetable import times
from yamlsched.timetable.times import NamedDay, TimeInput
from yamlsched.timetable.zones import zone


@dataclass(frozen=True)
class EnqueueResult:
    """The run that an enqueue created or found, and ``why`` none was created. ``found_by`` is key
    or unique, None of one that was created. ``pruned_at`` is set if it was pruned and only its key
    is kept.

    ``due`` is ``run_at`` for people: in UTC and in the job's time zone, and how a clock change
    affects what was given.
    """

    run_id: int | None
    created: bool
    status: str | None
    run_at: datetime | None
    pruned_at: datetime | None = None
    note: str = ""
    due: str = ""
    why: str = ""
    found_by: str | None = None


def enqueue(
    connection: psycopg.Connection[Any],
    namespace: str,
    job: str,
    payload: dict[str, Any],
    *,
    key: str | None,
    at: TimeInput | None,
    file: Path = Path("schedules.yaml"),
    priority: client.PriorityName | None = None,
    who: str,
) -> EnqueueResult:
    """Create a run of ``job``, due ``at``: what has no offset is read in the job's time zone, or
    that of ``file``.

    Raises Refused if the job does not exist or was retired, for "today 08:00" that has passed, and
    for an invalid payload or key.
    """
    create = partial(
        client.enqueue, connection, job, payload, key=key, priority=priority, namespace=namespace
    )
    try:
        known = {other.job_type: other for other in history.jobs(connection, namespace)}
    except psycopg.errors.InsufficientPrivilege:
        # a role that may only enqueue reads neither the job nor the run
        if at is not None and times.is_local(at):
            raise Refused(
                "this role cannot read the job's time zone: pass --at 2026-01-14T17:30Z, or 90m"
                " from now"
            ) from None
        run_at, due = due_at(at, zone("UTC"), query.now(connection))
        run_id, created = create(run_at=run_at)
        found = () if created else _found(run_id, key, is_unique=key is None)
        return EnqueueResult(run_id, created, None, run_at, None, "", due, *found)
    if job not in known:
        raise unknown_job(
            job, namespace, [name for name, other in known.items() if other.retired_at is None]
        )
    if (retired_at := known[job].retired_at) is not None:
        raise Refused(
            f'job "{job}" was removed from schedules.yaml on {retired_at:%Y-%m-%d}: restore it to'
            " enqueue it"
        )
    with connection.transaction():
        timezone = "UTC" if at is None else timezone_of(connection, namespace, [job], file)
        run_at, due = due_at(at, zone(timezone), query.now(connection))
        run_id, created = create(run_at=run_at)
        if run_id is None:
            pruned_id, pruned_at = history.id_of_key(connection, namespace, key or "") or (
                None,
                None,
            )
            found = _found(pruned_id, key, is_unique=False)
            return EnqueueResult(pruned_id, False, None, None, pruned_at, "", "", *found)
        run = history.run(connection, run_id)
        assert run is not None  # created or found in this transaction
        if created:
            audit.record(
                connection,
                who,
                "enqueue",
                [ActionRecord(namespace, f"run:{run_id}", job, {"key": key})],
            )
    note = f"it waits until the job is resumed: yamlsched resume {job}" if run.paused else ""
    found = () if created else _found(run_id, key, is_unique=run.key != key or key is None)
    return EnqueueResult(run_id, created, run.status, run.run_at, None, note, due, *found)


def _found(run_id: int | None, key: str | None, is_unique: bool) -> tuple[str, str]:
    """Return why an enqueue creates no run, and by what it found the run ``run_id``."""
    holder = "a run that was pruned" if run_id is None else f"run {run_id}"
    if is_unique:
        return f"{holder} has the same values (unique)", "unique"
    return f'{holder} has the key "{key}"', "key"


def due_at(at: TimeInput | None, where: ZoneInfo, now: datetime) -> tuple[datetime | None, str]:
    """Return when a run is to be due, and that time for people. Raises Refused for a named day that
    has passed.
    """
    if at is None:
        return None, ""
    run_at = times.resolve(at, lambda: where, now, is_future=True)
    if run_at < now and isinstance(at, NamedDay):  # a date that is written out may be meant
        raise Refused(f"{times.show(run_at, where)} has passed: pass a later --at, or none")
    return run_at, times.show(run_at, where)
