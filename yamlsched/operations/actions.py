"""What operators do: enqueue, retry, cancel, pause, resume. Each leaves a line in operator_actions."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, TypeVar

import psycopg

from yamlsched import client, times
from yamlsched.errors import Refused
from yamlsched.operations.history import unknown_job
from yamlsched.runs import Status
from yamlsched.store import actions, history
from yamlsched.store.actions import ActionRecord
from yamlsched.times import short_utc
from yamlsched.zones import zone

BATCH_RUNS = 200
"""Runs that one transaction changes: few enough that no worker waits long for a row."""

Returned = TypeVar("Returned")


def operator() -> str:
    """Return who works here: the user who became root by sudo, else the user of this process."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"uid {os.getuid()}"


@dataclass(frozen=True)
class EnqueueResult:
    """The run that an enqueue made or found. ``pruned_at`` is set where it is gone and only its key is remembered."""

    run_id: int | None
    created: bool
    status: str | None
    run_at: datetime | None
    pruned_at: datetime | None = None
    note: str = ""


def enqueue(
    connection: psycopg.Connection[Any],
    namespace: str,
    job: str,
    payload: dict[str, Any],
    *,
    key: str | None,
    at: datetime | time | timedelta | None,
    who: str,
) -> EnqueueResult:
    """Create a run of ``job``, due ``at``: a duration counts from now, a time of day is the next in the job's zone.

    Raises Refused with what is wrong.
    """
    try:
        known = {other.job_type: other for other in history.jobs(connection, namespace)}
    except psycopg.errors.InsufficientPrivilege:
        return _enqueue_unread(connection, namespace, job, payload, key, at)
    if job not in known or known[job].retired_at is not None:
        if job in known:
            raise Refused(
                f'job "{job}" was removed from schedules.yaml on {known[job].retired_at:%Y-%m-%d}: '
                "restore it to enqueue it"
            )
        raise unknown_job(job, namespace, [name for name, other in known.items() if other.retired_at is None])
    with connection.transaction():
        now = history.now(connection)
        if isinstance(at, time):
            at = times.next_occurrence(at, zone(known[job].timezone), now)
        run_at = times.after(at, now)
        run_id, created = client.enqueue(connection, job, payload, key=key, run_at=run_at, namespace=namespace)
        if run_id is None:
            found = history.id_of_key(connection, namespace, key or "")
            return EnqueueResult(found[0] if found else None, False, None, None, pruned_at=found[1] if found else None)
        run = history.run(connection, run_id)
        assert run is not None  # made or seen in this transaction
        if created:
            actions.record(connection, who, "enqueue", [ActionRecord(namespace, f"run:{run_id}", {"key": key})])
    note = f"it waits until the job is resumed: yamlsched resume {job}" if run.paused else ""
    return EnqueueResult(run_id, created, run.status, run.run_at, note=note)


def _enqueue_unread(
    connection: psycopg.Connection[Any],
    namespace: str,
    job: str,
    payload: dict[str, Any],
    key: str | None,
    at: datetime | time | timedelta | None,
) -> EnqueueResult:
    """The same for a role that may enqueue and see nothing."""
    if isinstance(at, time):
        raise Refused("this role cannot read the job's time zone: pass --at 2026-01-14T17:30Z, or 90m from now")
    run_at = times.after(at, history.now(connection))
    run_id, created = client.enqueue(connection, job, payload, key=key, run_at=run_at, namespace=namespace)
    return EnqueueResult(run_id, created, None, run_at)


@dataclass(frozen=True)
class ActionResult:
    """What became of one run or job: whether it was changed, and a sentence."""

    target: str
    changed: bool
    what: str


def retry(
    connection: psycopg.Connection[Any],
    ids: Iterable[int],
    who: str,
    *,
    force: bool = False,
    expected: Sequence[str] = tuple(Status),
    payload: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> list[ActionResult]:
    """Run again what is dead or cancelled (with ``force`` also what has succeeded); make due what waits.

    ``expected`` are the states in which the runs were chosen: one that has left them meanwhile is left alone.
    ``payload`` replaces theirs. Raises Refused for one that is not JSON or over 64 KiB.
    """
    text = None if payload is None else client.validate_payloads("", [payload], None)[0][0]

    def change(batch: list[int]) -> set[int]:
        return actions.retry(connection, batch, expected, force, now, text)

    def refusal(run: actions.LockedRun) -> str:
        if run.status == Status.RUNNING and run.locked_until is not None and run.locked_until < run.now:
            return "has lost its worker: the next tick handles it automatically"
        if run.status == Status.RUNNING:
            return "is running: cancel it first"
        if run.retired_at is not None:
            return f"belongs to {run.job_type}, which was removed from schedules.yaml: nothing would claim it"
        if not run.enabled:
            return f"belongs to {run.job_type}, which is disabled in schedules.yaml: nothing would claim it"
        if run.status == Status.SUCCEEDED and run.status in expected:
            return "has succeeded: --force runs it again (effects done by run.once() are not repeated)"
        return f"is now {run.status}"

    def success(run: actions.LockedRun) -> str:
        waits = f"; it waits until the job is resumed: yamlsched resume {run.job_type}" if run.paused else ""
        if run.held_until is not None and run.held_until > run.now:
            return f"is due at {short_utc(run.held_until)}: its cancelled handler may run until then{waits}"
        return ("is due now" if run.status in (Status.QUEUED, Status.FAILED) else "is queued again") + waits

    reason = None if payload is None else "with another payload"
    return _runs(connection, ids, who, "retry", change, success, refusal, now, reason, lock_jobs=True)


def cancel(
    connection: psycopg.Connection[Any],
    ids: Iterable[int],
    who: str,
    *,
    reason: str | None = None,
    expected: Sequence[str] = tuple(Status),
    now: datetime | None = None,
) -> list[ActionResult]:
    """Cancel what is unfinished. The handler of a running run is killed at its worker's next heartbeat."""

    def change(batch: list[int]) -> set[int]:
        return actions.cancel(connection, batch, expected, now)

    def refusal(run: actions.LockedRun) -> str:
        if run.status in (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED):
            return f"is already {run.status}"
        return f"is now {run.status}"

    def success(run: actions.LockedRun) -> str:
        running = run.status == Status.RUNNING
        return "is cancelled" + ("; its handler is killed at its worker's next heartbeat" if running else "")

    return _runs(connection, ids, who, "cancel", change, success, refusal, now, reason)


def _runs(
    connection: psycopg.Connection[Any],
    ids: Iterable[int],
    who: str,
    verb: str,
    change: Callable[[list[int]], set[int]],
    success: Callable[[actions.LockedRun], str],
    refusal: Callable[[actions.LockedRun], str],
    now: datetime | None,
    reason: str | None = None,
    lock_jobs: bool = False,
) -> list[ActionResult]:
    """Carry out ``change`` in transactions of ``BATCH_RUNS`` runs, and say for each run what happened or why not."""
    wanted = list(dict.fromkeys(ids))
    answers: list[ActionResult] = []
    for start in range(0, len(wanted), BATCH_RUNS):
        batch = wanted[start : start + BATCH_RUNS]

        def attempt(batch: list[int] = batch) -> tuple[dict[int, actions.LockedRun], set[int]]:
            with connection.transaction():
                if lock_jobs:
                    actions.lock_jobs(connection, batch)
                held = actions.lock_runs(connection, batch, now)
                changed = change(batch)
                if changed:
                    records = [
                        ActionRecord(held[id].namespace, f"run:{id}", {"was": held[id].status, "reason": reason})
                        for id in batch
                        if id in changed
                    ]
                    actions.record(connection, who, verb, records, now)
                    actions.wake(connection, (held[id].namespace for id in changed))
            return held, changed

        held, changed = retry_on_deadlock(attempt)
        for id in batch:
            if id not in held:
                answers.append(ActionResult(f"run {id}", False, "does not exist, or was pruned"))
            else:
                what = success(held[id]) if id in changed else refusal(held[id])
                answers.append(ActionResult(f"run {id}", id in changed, what))
    return answers


def retry_on_deadlock(attempt: Callable[[], Returned]) -> Returned:
    """Return what ``attempt`` does; workers lock many runs at once too, and the server may choose us to give way."""
    for _ in range(4):
        try:
            return attempt()
        except psycopg.errors.DeadlockDetected:
            continue
    return attempt()
