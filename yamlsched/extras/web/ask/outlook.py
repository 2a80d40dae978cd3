"""What an action on a run would lead to, in sentences, before an operator confirms it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import psycopg

from yamlsched.act.backfill import slots_between
from yamlsched.act.runs import RunState, retry_obstacle, run_states
from yamlsched.db.query import load
from yamlsched.extras.web.ask import audit
from yamlsched.extras.web.ask.audit import sentence
from yamlsched.runs.lifecycle import Status
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times

MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Outlook:
    """The state of a run, what an action leads to, and what to consider. ``refusal``: why nothing
    can be done.
    """

    run: RunState
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
    outlook = Outlook(run, state(run), refusal=f"It {obstacle}." if obstacle else "")
    if outlook.refusal:
        return outlook
    is_over = run.finished_at is not None
    if run.paused:
        outlook.lines.append(
            f"It {'is queued' if is_over else 'becomes due'}, and waits: {_paused(run)}."
        )
    elif is_over and run.locked_until is not None and run.locked_until > run.now:
        outlook.lines.append(
            "It runs again when its cancelled handler has ended, at"
            f" {_at(run, run.locked_until)} at the latest."
        )
    elif is_over:
        outlook.lines.append("It runs again at once, as soon as a worker is free.")
    elif run.run_at <= run.now:
        outlook.lines.append(
            "It is due already, and waits for a worker: a retry does not make it faster."
        )
    else:
        outlook.lines.append(f"It is due at once, instead of at {_at(run, run.run_at)}.")
    if run.running_run_id is not None and run.is_slot_run and run.overlap != "allow":
        outlook.lines.append(
            f"It first waits for run {run.running_run_id} of the same job, which is running."
        )
    if is_over:
        outlook.lines.append(
            f"Attempts so far: {run.attempts}. It gets {run.budget} more, and the delays between"
            " them start over."
        )
    else:
        outlook.lines.append(
            f"Attempts so far: {run.attempts} of {run.max_attempts}. It gets no further ones."
        )
    if run.on_dead and not run.is_on_dead_call:
        again = "again " if run.status == Status.DEAD else ""
        outlook.lines.append(f"If it dies, {run.on_dead} is called {again}(on_dead).")
    if run.effects_done:
        are = "effect is" if run.effects_done == 1 else "effects are"
        outlook.lines.append(f"{run.effects_done} {are} done already (run.once), and not repeated.")
    if run.status == Status.SUCCEEDED:
        outlook.warnings.append(
            "It has succeeded. What its handler does without run.once() is done a second time."
        )
    outlook.warnings.extend(
        f'Effect "{key}" is in doubt: settle it first. With in_doubt="raise" the run will be dead'
        " again."
        for key in run.effects_in_doubt
    )
    _add_recent(connection, run, outlook)
    return outlook


def of_cancel(connection: psycopg.Connection[object], run: RunState) -> Outlook:
    """Return what cancelling ``run`` leads to."""
    outlook = Outlook(run, state(run), refusal="It is over." if run.finished_at is not None else "")
    if outlook.refusal:
        return outlook
    if run.status == Status.RUNNING and run.locked_until is not None and run.locked_until > run.now:
        outlook.lines.append(
            "It is stopped at its worker's next heartbeat, at the latest when its lease ends, at "
            f"{_at(run, run.locked_until)}."
        )
        outlook.warnings.append(
            "What the handler has done so far stays done, except in run.transaction(), which is"
            " rolled back."
        )
    elif run.status == Status.RUNNING:
        outlook.lines.append(
            "It is cancelled at once. It has lost its worker, so no handler is running."
        )
    else:
        outlook.lines.append("It is cancelled at once, and does not run.")
    outlook.lines.append(
        "It counts as neither succeeded nor dead: on_dead is not called. A retry makes it due"
        " again."
    )
    _add_recent(connection, run, outlook)
    return outlook


def state(run: RunState) -> str:
    """Return the state of ``run`` as a sentence."""
    ended = f" since {_at(run, run.finished_at)}" if run.finished_at else ""
    match run.status:
        case Status.RUNNING:
            since = f" since {_at(run, run.started_at)}" if run.started_at else ""
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
                    f"Waiting until {_at(run, run.run_at)} for attempt {run.attempts + 1} of"
                    f" {run.max_attempts}"
                )
            return f"Queued, due at {_at(run, run.run_at)}"
    return run.status.capitalize() + ended


def _add_recent(connection: psycopg.Connection[object], run: RunState, outlook: Outlook) -> None:
    latest = audit.latest(connection, run.namespace, f"run:{run.id}")
    if latest is not None:
        outlook.lines.append(f"Before: {sentence(latest, run.now)}.")


def _paused(run: RunState) -> str:
    who = f" by {run.paused_by}" if run.paused_by else ""
    until = f" until {_at(run, run.paused_until)}" if run.paused_until else " until it is resumed"
    why = f" ({run.paused_reason})" if run.paused_reason else ""
    return f"job {run.job_type} is paused{who}{until}{why}"


def _at(run: RunState, instant: object) -> str:
    assert hasattr(instant, "astimezone")
    return times.short_utc(instant)  # type: ignore[arg-type]


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
    unfinished = connection.execute(
        load("history")["unfinished"], {"namespace": namespace, "ids": [job.id]}
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
