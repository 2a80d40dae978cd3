"""What operators do to runs: enqueue, retry, cancel. Each action is recorded in
operator_actions.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from yamlsched.act import audit
from yamlsched.act.audit import ActionRecord
from yamlsched.ask.history import find
from yamlsched.db.query import execute, fetch
from yamlsched.errors import Refused
from yamlsched.handler.once import settle_command
from yamlsched.runs import enqueue as client
from yamlsched.runs.lifecycle import Status
from yamlsched.text import join_first
from yamlsched.timetable.times import short_utc

BATCH_RUNS = 200
"""Runs that one transaction changes: so few that no worker waits long for a row."""
MAX_DEADLOCKS = 4

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class RunState:
    """A run, and what decides whether it can be retried and what a retry or a cancel leads to."""

    id: int
    namespace: str
    job_type: str
    status: str
    attempts: int
    max_attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    locked_until: datetime | None
    last_error: str | None
    error_type: str | None
    payload: Any
    budget: int  # attempts that a retry adds
    on_dead: list[str]
    enabled: bool
    retired_at: datetime | None
    paused: bool
    effects_done: int
    effects_in_doubt: list[str]  # keys
    holds_up: list[str] | None  # runs that wait for it, with their jobs
    skipped: list[str] | None  # jobs that follow, whose slots are gaps because of it
    beside: int | None  # of a job with `unique`: the unfinished run with the same values
    now: datetime


def operator() -> str:
    """Return the name that is recorded with actions: the user who called sudo, else the user of
    this process.
    """
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"uid {os.getuid()}"


@dataclass(frozen=True)
class ActionResult:
    """The result for one run or job: whether it was changed, and a clause that says what happened,
    or why not.
    """

    target: str
    changed: bool
    what: str


def find_each(
    connection: psycopg.Connection[Any],
    namespace: str | None,
    names: Sequence[str],
) -> tuple[list[int], list[ActionResult]]:
    """Return the ids of the runs with these ids or keys, and a result for each name that has no
    run. Without a namespace all must be ids.
    """
    ids, rejected = [], []
    for name in names:
        try:
            ids.append(find(connection, namespace, name))
        except Refused as error:
            rejected.append(ActionResult(name, False, f"cannot be found: {error}"))
    return ids, rejected


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
    """Queue dead and cancelled runs again (with ``force`` also succeeded ones); make waiting runs
    due.

    ``expected`` are the states in which the runs were selected: a run that has left them is not
    changed. ``payload`` replaces theirs. Raises Refused for a payload that is not JSON or over 64
    KiB.
    """
    text = None if payload is None else client.encode_payload("", payload)
    beside: dict[int, int] = {}

    def change(batch: list[int]) -> set[int]:
        values = {
            "ids": batch,
            "expected": list(expected),
            "force": force,
            "now": now,
            "payload": text,
        }
        rows = execute(connection, "actions.retry", **values).fetchall()
        beside.update((row.id, row.beside) for row in rows if row.beside)
        retried = {row.id for row in rows if not row.beside}
        if force:
            execute(connection, "actions.end_waits", ids=list(retried), now=now)
        return retried

    def describe(run: RunState, is_changed: bool) -> str:
        run = replace(run, beside=beside.get(run.id, run.beside))
        return retried(run) if is_changed else _not_retried(run, run.status in expected)

    reason = None if payload is None else "with another payload"
    return _change(connection, ids, "retry", who, change, describe, now, reason, locks_jobs=True)


def _last_attempt(run: RunState) -> str | None:
    """Return the attempt before a retry, for the trail: the row of a run describes the next one
    from then on.

    Failed attempts have a row of their own.
    """
    if run.status not in (Status.CANCELLED, Status.SUCCEEDED) or not run.started_at:
        return None
    end = short_utc(run.finished_at) if run.finished_at else ""
    return f"{run.attempts} on {run.worker}, {short_utc(run.started_at)} to {end}"


def retried(run: RunState) -> str:
    """Return what a retry does to ``run``, as what follows its name."""
    waits = (
        f"; it waits until the job is resumed: yamlsched resume {run.job_type}"
        if run.paused
        else ""
    )
    if run.effects_in_doubt:
        key = run.effects_in_doubt[0]
        waits += (
            f'; effect "{key}" is in doubt, and with in_doubt="raise" the run will'
            " be dead again: find out whether it happened, then run:"
            f" {settle_command(run.namespace, key)}"
        )
    if run.holds_up:
        waits += (
            f"; {join_first(run.holds_up, 5)} {'waits' if len(run.holds_up) == 1 else 'wait'}"
            " for it"
        )
    if run.skipped:
        waits += (
            f"; the slots of {join_first(run.skipped, 5)} that were skipped because of it stay"
            " skipped: yamlsched backfill creates their runs"
        )
    if run.locked_until is not None and run.locked_until > run.now:
        return (
            "is queued again, and starts when its cancelled handler has ended, at"
            f" {short_utc(run.locked_until)} at the latest{waits}"
        )
    return (
        "is due now" if run.status in (Status.QUEUED, Status.FAILED) else "is queued again"
    ) + waits


def retry_obstacle(run: RunState) -> str | None:
    """Return why a run cannot be retried in any way, as what follows its name; None if nothing is
    against it.
    """
    if run.status == Status.RUNNING and run.locked_until is not None and run.locked_until < run.now:
        return f"has lost its worker {run.worker}: the next tick handles it automatically"
    if run.status == Status.RUNNING:
        return "is running: cancel it first"
    if run.retired_at is not None:
        return (
            f"belongs to {run.job_type}, which was removed from schedules.yaml: no worker would"
            " claim it"
        )
    if not run.enabled:
        return (
            f"belongs to {run.job_type}, which is not enabled in schedules.yaml: no worker would"
            " claim it"
        )
    if run.beside is not None:
        return (
            f"is not retried while run {run.beside} is unfinished: unique of {run.job_type}"
            " allows one run with these values at a time"
        )
    return None


def _not_retried(run: RunState, is_expected: bool) -> str:
    obstacle = retry_obstacle(run)
    if obstacle is not None:
        return obstacle
    if run.status == Status.QUEUED and is_expected:
        return "waits for the jobs it follows: --force starts it without waiting"
    if run.status == Status.SUCCEEDED and is_expected:
        return "has succeeded: --force runs it again (effects done by run.once() are not repeated)"
    return f"is now {run.status}"


def cancel(
    connection: psycopg.Connection[Any],
    ids: Iterable[int],
    who: str,
    *,
    reason: str | None = None,
    expected: Sequence[str] = tuple(Status),
    now: datetime | None = None,
) -> list[ActionResult]:
    """Cancel unfinished runs. A running run is stopped at its worker's next heartbeat."""

    def change(batch: list[int]) -> set[int]:
        values = {"ids": batch, "expected": list(expected), "now": now}
        cancelled = execute(connection, "actions.cancel", **values).fetchall()
        ended: dict[str, list[int]] = {}
        for run in cancelled:
            if not run.is_executed:
                ended.setdefault(run.namespace, []).append(run.id)
        for namespace, ids in ended.items():
            values = {"namespace": namespace, "ids": ids, "reported": [], "now": now}
            execute(connection, "runs.release", **values)
        return {run.id for run in cancelled}

    def describe(run: RunState, is_changed: bool) -> str:
        if is_changed:
            return cancelled(run)
        is_over = run.status in (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED)
        return f"is {'already' if is_over else 'now'} {run.status}"

    return _change(connection, ids, "cancel", who, change, describe, now, reason)


def cancelled(run: RunState) -> str:
    """Return what a cancel does to ``run``, as what follows its name."""
    is_running = run.status == Status.RUNNING
    return "is cancelled" + ("; it is stopped at its worker's next heartbeat" if is_running else "")


def _change(
    connection: psycopg.Connection[Any],
    ids: Iterable[int],
    verb: str,
    who: str,
    change: Callable[[list[int]], set[int]],
    describe: Callable[[RunState, bool], str],
    now: datetime | None,
    reason: str | None,
    locks_jobs: bool = False,
) -> list[ActionResult]:
    """Call ``change`` in transactions of ``BATCH_RUNS`` runs, and describe for each run what
    happened, or why not.
    """
    selected = list(dict.fromkeys(ids))
    results: list[ActionResult] = []
    for start in range(0, len(selected), BATCH_RUNS):
        batch = selected[start : start + BATCH_RUNS]

        def attempt(batch: list[int] = batch) -> tuple[dict[int, RunState], set[int]]:
            with connection.transaction():
                if locks_jobs:
                    execute(connection, "actions.lock_jobs", ids=batch)
                execute(connection, "runs.lock", ids=batch)
                locked = run_states(connection, batch, now)
                changed = change(batch)
                runs = [locked[id] for id in batch if id in changed]
                records = [
                    ActionRecord(
                        run.namespace,
                        f"run:{run.id}",
                        run.job_type,
                        {
                            "was": run.status,
                            "reason": reason,
                            "attempt": _last_attempt(run) if verb == "retry" else None,
                        },
                    )
                    for run in runs
                ]
                if records:
                    audit.record(connection, who, verb, records, now)
                    audit.wake(connection, (run.namespace for run in runs))
            return locked, changed

        locked, changed = retry_on_deadlock(attempt)
        for id in batch:
            what = (
                describe(locked[id], id in changed)
                if id in locked
                else "does not exist, or was pruned"
            )
            results.append(ActionResult(f"run {id}", id in changed, what))
    return results


def run_states(
    connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None = None
) -> dict[int, RunState]:
    """Return the runs ``ids`` that exist, by id."""
    parameters = {"ids": list(ids), "now": now}
    rows = fetch(connection, RunState, "actions.run_states", **parameters)
    return {row.id: row for row in rows}


def retry_on_deadlock(attempt: Callable[[], Returned]) -> Returned:
    """Return ``attempt()``. Workers lock many runs at once too, and the server may choose our
    transaction to abort.
    """
    for _ in range(MAX_DEADLOCKS):
        try:
            return attempt()
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            continue  # or of a job with `unique`, a run was enqueued at the same time
    return attempt()
