"""The attempts of one run, from where they are recorded, and what an unfinished run waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import set_json_loads

from yamlsched.ask.edits import InUse
from yamlsched.ask.trail import TrailEntry
from yamlsched.db.query import execute, fetch, fetch_column
from yamlsched.durations import approximate, show
from yamlsched.runs import progress
from yamlsched.runs.lifecycle import Status, error_text
from yamlsched.runs.progress import StoredProgress
from yamlsched.text import show_bytes


@dataclass(frozen=True)
class RunDetails:
    """One run, with its failed attempts, effects, relatives and the actions of operators.

    ``edits`` are those in use when it was created. ``texts`` are the attempts whose stacks and
    outputs were read; None: all.
    """

    run: StoredRun
    failures: list[FailedAttempt]
    outputs: list[KeptOutput]
    progress: list[StoredProgress]
    effects: list[RunEffect]
    children: list[ChildRun]
    hooks: list[ChildRun]  # the first ones
    parent: StoredRun | None
    actions: list[TrailEntry]
    edits: InUse | None
    texts: list[int] | None = None


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt. ``status`` is failed, succeeded, cancelled, running, or ended.

    One that has ended otherwise has left only its output: it was released, and its number is that
    of the next one, or its run was retried after it.
    """

    number: int
    status: str
    worker: str
    started_at: datetime | None
    ended_at: datetime | None
    took: timedelta | None
    error: str = ""
    stack: str | None = None
    output: KeptOutput | None = None
    progress: StoredProgress | None = None
    revision: str | None = None  # of its code
    used: str = ""  # CPU and memory, in words


def attempts(details: RunDetails) -> list[AttemptRecord]:
    """Return the attempts, oldest first: the failed ones from job_failures, the latest one from the
    run itself, and what else has left output.
    """
    run = details.run
    outputs = {(output.attempt, output.worker): output for output in details.outputs}
    reported = {(progress.attempt, progress.worker): progress for progress in details.progress}

    def record(
        number: int,
        status: str,
        worker: str,
        start: datetime | None,
        end: datetime | None,
        **rest: Any,
    ) -> AttemptRecord:
        claim = (number, worker)
        took = None if status == "cancelled" else _between(start, end)
        output, progress = outputs.pop(claim, None), reported.get(claim)
        return AttemptRecord(
            number, status, worker, start, end, took, output=output, progress=progress, **rest
        )

    records = [
        record(
            failed.attempt,
            "failed",
            failed.worker,
            failed.started_at,
            failed.failed_at,
            error=error_text(failed.error_type, failed.error),
            stack=failed.stack,
            revision=failed.revision,
            used=used(failed),
        )
        for failed in details.failures
    ]
    is_recorded = any(failed.number == run.attempts for failed in records)
    if run.attempts and not is_recorded and run.status in ("succeeded", "running", "cancelled"):
        ends = (run.started_at, run.finished_at)
        rest: dict[str, Any] = {"revision": run.revision, "used": used(run)}
        records.append(record(run.attempts, run.status, run.worker or "", *ends, **rest))
    for kept in list(outputs.values()):
        records.append(record(kept.attempt, "ended", kept.worker, None, kept.ended_at))
    return sorted(
        records, key=lambda record: (record.number, record.ended_at is None, record.ended_at)
    )


def used(attempt: StoredRun | FailedAttempt) -> str:
    """Return what an attempt used, as far as that is known: "cpu 1.2s, memory 210.3 MiB"."""
    cpu, peak = attempt.cpu_seconds, attempt.peak_memory_bytes
    parts = [] if cpu is None else [f"cpu {show(timedelta(seconds=cpu))}"]
    parts += (
        []
        if peak is None
        else [f"memory {'< ' if attempt.peak_memory_is_bound else ''}{show_bytes(peak)}"]
    )
    return ", ".join(parts)


def took(run: RunRow) -> timedelta | None:
    """Return how long the latest attempt took; None if that is unknown, as of one that was
    cancelled.
    """
    return None if run.status == "cancelled" else _between(run.started_at, run.finished_at)


def _between(started: datetime | None, ended: datetime | None) -> timedelta | None:
    return max(ended - started, timedelta(0)) if started and ended else None


ENDS = {"dead": "the death", "failed": "a failed attempt", "succeeded": "the success"}
"""What a hook reports, by the value of ``hook``."""


@dataclass(frozen=True)
class RunRow:
    """A run as lists show it."""

    id: int
    job_type: str
    key: str | None
    status: str
    priority: str
    attempts: int
    max_attempts: int
    scheduled_for: datetime | None
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    created_at: datetime
    worker: str | None
    last_error: str | None
    error_type: str | None
    hook: str | None  # the end of the parent that it reports, as a hook
    parent_id: int | None
    waits: str | None  # what keeps it from being claimed, if a claim has met it
    # of the latest attempt; in lists, while it runs
    progress: StoredProgress | None = field(default=None, kw_only=True)

    @property
    def has_error(self) -> bool:
        """Whether its error says why it is in its state."""
        return self.status in (Status.DEAD, Status.FAILED) or (
            self.status == Status.CANCELLED and self.error_type == "Expired"
        )


@dataclass(frozen=True)
class StoredRun(RunRow):
    """One run, and the columns of its job that explain its state."""

    namespace: str
    queue: str
    failed_at: datetime | None
    updated_at: datetime
    locked_until: datetime | None
    exclusive: bool
    payload: Any
    result: Any
    # of the latest attempt
    revision: str | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    peak_memory_is_bound: bool | None  # of a program: it was not more than that
    handler: str | None
    command: list[str]
    keeps_output: str  # of which attempts
    owner: str
    timezone: str
    enabled: bool
    retired_at: datetime | None
    paused: bool
    start_within: timedelta
    begun_at: datetime | None
    late_at: datetime | None  # null: it waits for a pause, its turn or other jobs
    finish_by: datetime | None
    expires_at: datetime | None  # unless it has begun by then; null: it does not expire
    is_closed: bool  # it waits until its job is resumed, enabled or back

    def lateness(self, now: datetime) -> list[str]:
        """Return in words by which keys of its job it is late, or was when it ended."""
        if self.is_closed or self.status == Status.CANCELLED:
            return []
        lines = []
        began_at = self.begun_at or (now if self.finished_at is None else None)
        if self.late_at is not None and began_at is not None and began_at > self.late_at:
            what = "has not started" if self.begun_at is None else "started"
            late_by = approximate(began_at - self.late_at + self.start_within)
            lines.append(
                f"it {what} {late_by} after it was due (start_within: {show(self.start_within)})"
            )
        if self.finish_by is not None and self.finish_within is not None:
            succeeded_at = self.finished_at if self.status == Status.SUCCEEDED else None
            if (ended_at := succeeded_at or now) > self.finish_by:
                what = "succeeded" if succeeded_at else "has not succeeded"
                late_by = approximate(ended_at - self.finish_by + self.finish_within)
                lines.append(
                    f"it {what} {late_by} after its slot"
                    f" (finish_within: {show(self.finish_within)})"
                )
        return lines

    @property
    def finish_within(self) -> timedelta | None:
        """How long after its slot it is to have succeeded; None: it need not."""
        if self.finish_by is None or self.scheduled_for is None:
            return None
        return self.finish_by - self.scheduled_for


@dataclass(frozen=True)
class FailedAttempt:
    """A failed or lost attempt."""

    attempt: int
    worker: str
    started_at: datetime | None
    failed_at: datetime
    error: str
    error_type: str | None
    stack: str | None
    revision: str | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    peak_memory_is_bound: bool | None


@dataclass(frozen=True)
class KeptOutput:
    """The end of what one attempt printed."""

    attempt: int
    worker: str  # the claim: an attempt that was released leaves its number to the next one
    ended_at: datetime  # of one that is not final: when it was written
    omitted_bytes: int
    is_final: bool  # else the attempt is running, or was lost
    output: str


@dataclass(frozen=True)
class RunEffect:
    """An effect that the run started."""

    key: str
    state: str
    provider_key: str  # effect.key
    attempt: int
    result: Any
    claimed_at: datetime
    doubted_at: datetime | None  # set in a done effect: in_doubt="skip" counted it as done
    done_at: datetime | None


@dataclass(frozen=True)
class ChildRun:
    """A run that the run's handler enqueued."""

    id: int
    job_type: str
    key: str | None
    status: str


def namespaces(connection: psycopg.Connection[Any], limit: int | None = None) -> list[str]:
    """Return the namespaces that have jobs or files; with ``limit``, the first ones
    that have jobs.
    """
    return fetch_column(connection, "history.namespaces", limit=limit)


def jobs(connection: psycopg.Connection[Any], namespace: str) -> list[Any]:
    """Return the jobs of ``namespace`` by name, with all columns, retired ones included."""
    return execute(connection, "history.jobs", namespace=namespace).fetchall()


def runs(
    connection: psycopg.Connection[Any],
    conditions: Mapping[str, Any],
    *,
    low: int,
    high: int,
    limit: int,
    oldest_first: bool = False,
    ids: Sequence[int] | None = None,
) -> list[RunRow]:
    """Return up to ``limit`` runs with an id from ``low`` to below ``high``, newest first unless
    told otherwise.

    ``conditions`` are the parameters of a filter and the namespace. With ``ids``, only among these.
    """
    position: dict[str, Any] = {
        "low": low,
        "high": high,
        "limit": limit,
        "oldest_first": oldest_first,
    }
    position["ids"] = None if ids is None else list(ids)
    rows = fetch(connection, RunRow, "history.runs", **conditions, **position)
    running = [row.id for row in rows if row.status == Status.RUNNING]
    reported = progress.of_runs(connection, running) if running else {}
    return [
        replace(row, progress=reported[row.id][0]) if row.id in reported else row for row in rows
    ]


def id_of_key(
    connection: psycopg.Connection[Any], namespace: str, key: str
) -> tuple[int, datetime | None] | None:
    """Return the id of the run that has or had ``key``, and when that run was pruned."""
    parameters = {"namespace": namespace, "keys": [key]}
    row = execute(connection, "slots.key_holders", **parameters).fetchone()
    return (row.run_id, row.pruned_at) if row else None


def run(connection: psycopg.Connection[Any], id: int) -> StoredRun | None:
    """Return a run. A payload or result that Python cannot parse is returned as its JSON text."""
    set_json_loads(_readable, connection)
    return next(iter(fetch(connection, StoredRun, "history.run", id=id)), None)


def _readable(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode()
