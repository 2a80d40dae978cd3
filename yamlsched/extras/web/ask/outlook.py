"""What an action on a run would lead to, in sentences, before an operator confirms it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import psycopg

from yamlsched.act.backfill import slots_between
from yamlsched.act.runs import RunState, cancelled, retried, retry_obstacle, run_states
from yamlsched.db.query import execute
from yamlsched.extras.web.ask import audit
from yamlsched.extras.web.ask.audit import sentence
from yamlsched.extras.web.render import count
from yamlsched.runs.lifecycle import Status
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times

MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Outlook:
    """The state of a run, what an action leads to, and what to consider. ``refusal``: why nothing
    can be done.
    """

    state: str
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusal: str = ""


def find(connection: psycopg.Connection[Any], namespace: str, id: int) -> RunState | None:
    """Return a run of ``namespace``; None if there is none."""
    run = run_states(connection, [id]).get(id)
    return run if run is not None and run.namespace == namespace else None


def of_retry(connection: psycopg.Connection[object], run: RunState) -> Outlook:
    """Return what a retry of ``run`` leads to; of a run that has succeeded, what a
    forced one does.
    """
    obstacle = retry_obstacle(run)
    outlook = Outlook(state(run), refusal=f"It {obstacle}." if obstacle else "")
    if outlook.refusal:
        return outlook
    outlook.lines.append(f"It {retried(run)}.")
    if run.finished_at is not None:
        outlook.lines.append(
            f"Attempts so far: {run.attempts}. It gets {run.budget} more, and the delays between"
            " them start over."
        )
    if run.on_dead:
        again = " again" if run.status == Status.DEAD else ""
        outlook.lines.append(f"If it dies, on_dead runs{again}: {', '.join(run.on_dead)}.")
    if run.effects_done:
        outlook.lines.append(
            f"Not repeated: {count(run.effects_done, 'effect')} done already (run.once)."
        )
    if run.status == Status.SUCCEEDED:
        outlook.warnings.append(
            "It has succeeded. What its handler does without run.once() happens twice."
        )
    _add_recent(connection, run, outlook)
    return outlook


def of_cancel(connection: psycopg.Connection[object], run: RunState) -> Outlook:
    """Return what cancelling ``run`` leads to."""
    outlook = Outlook(state(run), refusal="It is over." if run.finished_at is not None else "")
    if outlook.refusal:
        return outlook
    outlook.lines.append(f"It {cancelled(run)}.")
    outlook.lines.append(
        "It counts as neither succeeded nor dead: no hook runs. A retry makes it due again."
    )
    if run.status == Status.RUNNING:
        outlook.warnings.append(
            "What the handler has done so far stays done, except in run.transaction(), which is"
            " rolled back."
        )
    _add_recent(connection, run, outlook)
    return outlook


def state(run: RunState) -> str:
    """Return the state of ``run`` as a sentence."""
    ended = f" since {times.short_utc(run.finished_at)}" if run.finished_at else ""
    match run.status:
        case Status.RUNNING:
            since = f" since {times.short_utc(run.started_at)}" if run.started_at else ""
            host = (run.worker or "").partition(":")[0]
            return f"Running{since} on {host}, attempt {run.attempts} of {run.max_attempts}"
        case Status.DEAD:
            error = f"{run.error_type + ': ' if run.error_type else ''}{run.last_error or ''}"[
                :MAX_ERROR_CHARS
            ]
            return f"Dead{ended}" + (f", after {error}" if error else "")
        case Status.QUEUED | Status.FAILED:
            if run.attempts:
                return (
                    f"Waiting until {times.short_utc(run.run_at)} for attempt {run.attempts + 1} of"
                    f" {run.max_attempts}"
                )
            return f"Queued, due at {times.short_utc(run.run_at)}"
    return run.status.capitalize() + ended


def _add_recent(connection: psycopg.Connection[object], run: RunState, outlook: Outlook) -> None:
    latest = audit.latest(connection, run.namespace, f"run:{run.id}")
    if latest is not None:
        outlook.lines.append(f"Before: {sentence(latest, run.now)}.")


MAX_COUNTED = 1_000
MAX_LISTED_SLOTS = 10


@dataclass(frozen=True)
class PauseOutlook:
    """The slots in a span, and the runs that wait.

    Of slots at most ``MAX_COUNTED`` + 1 are counted. ``first_slots`` are the first of them.
    """

    slots: int
    first_slots: Sequence[datetime]
    waiting_runs: int
    running_runs: int


def read(
    connection: psycopg.Connection[Any],
    namespace: str,
    job: Definition,
    start: datetime,
    end: datetime | None,
) -> PauseOutlook:
    """Return what a pause of ``job`` in (start, end] concerns. Without an end, the first slots are
    not counted.
    """
    slots = list(
        islice(_slots(job, start, end), MAX_LISTED_SLOTS if end is None else MAX_COUNTED + 1)
    )
    unfinished = execute(
        connection, "history.unfinished", namespace=namespace, ids=[job.id]
    ).fetchone()
    runs, running = (unfinished.runs, unfinished.running) if unfinished else (0, 0)
    return PauseOutlook(
        slots=0 if end is None else len(slots),
        first_slots=slots[:MAX_LISTED_SLOTS],
        waiting_runs=runs - running,
        running_runs=running,
    )


def _slots(job: Definition, start: datetime, end: datetime | None) -> Iterator[datetime]:
    if job.schedule is None or not job.enabled or job.retired_at is not None:
        return
    until = end or start.replace(year=min(start.year + 50, times.MAX_YEAR), day=1)
    for slot in slots_between(job, start + timedelta(microseconds=1), until):
        yield slot.at


def words(job: Definition) -> str:
    """Return the pause of a job as a clause: "by maria, until ..., because: ..."."""
    end = job.paused_until
    until = f"until {times.short_utc(end)}" if end else "until it is resumed"
    who = f"by {job.paused_by}, " if job.paused_by else ""
    return f"{who}{until}" + (f"; reason: {job.paused_reason}" if job.paused_reason else "")
