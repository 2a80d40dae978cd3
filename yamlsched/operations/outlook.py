"""What an action on a run would lead to, in sentences, before an operator confirms it."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg

from yamlsched import times
from yamlsched.operations.actions import retry_obstacle
from yamlsched.operations.audit import sentence
from yamlsched.runs import Status
from yamlsched.store import actions, audit
from yamlsched.store.actions import RunOutlook
from yamlsched.zones import zone

MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Outlook:
    """The state of a run, what an action leads to, and what to consider. ``refusal``: why nothing can be done."""

    run: RunOutlook
    state: str
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusal: str = ""


def find(connection: psycopg.Connection[object], namespace: str, id: int) -> RunOutlook | None:
    """Return a run of ``namespace``; None if there is none."""
    return actions.outlook(connection, namespace, id)


def of_retry(connection: psycopg.Connection[object], run: RunOutlook) -> Outlook:
    """Return what a retry of ``run`` leads to; of a run that has succeeded, what a forced one does."""
    obstacle = retry_obstacle(run)
    found = Outlook(run, state(run), refusal=f"It {obstacle}." if obstacle else "")
    if found.refusal:
        return found
    is_over = run.finished_at is not None
    if run.paused:
        found.lines.append(f"It {'is queued' if is_over else 'becomes due'}, and waits: {_paused(run)}.")
    elif run.held_until is not None and run.held_until > run.now:
        found.lines.append(f"It runs again at {_at(run, run.held_until)}: its cancelled handler may run until then.")
    elif is_over:
        found.lines.append("It runs again at once, as soon as a worker is free.")
    elif run.run_at <= run.now:
        found.lines.append("It is due already, and waits for a worker: a retry does not make it faster.")
    else:
        found.lines.append(f"It is due at once, instead of at {_at(run, run.run_at)}.")
    if run.running_run_id is not None and run.is_slot_run and run.overlap != "allow":
        found.lines.append(f"It first waits for run {run.running_run_id} of the same job, which is running.")
    if is_over:
        found.lines.append(
            f"Attempts so far: {run.attempts}. It gets {run.budget} more, and the delays between them start over."
        )
    else:
        found.lines.append(f"Attempts so far: {run.attempts} of {run.max_attempts}. It gets no further ones.")
    if run.on_dead and not run.is_on_dead_call:
        again = "again " if run.status == Status.DEAD else ""
        found.lines.append(f"If it dies, {run.on_dead} is called {again}(on_dead).")
    if run.effects_done:
        are = "effect is" if run.effects_done == 1 else "effects are"
        found.lines.append(f"{run.effects_done} {are} done already (run.once), and not repeated.")
    if run.status == Status.SUCCEEDED:
        found.warnings.append("It has succeeded. What its handler does without run.once() is done a second time.")
    found.warnings.extend(
        f'Effect "{key}" is in doubt: settle it first. With in_doubt="raise" the run will be dead again.'
        for key in run.effects_in_doubt
    )
    _add_recent(connection, run, found)
    return found


def of_cancel(connection: psycopg.Connection[object], run: RunOutlook) -> Outlook:
    """Return what cancelling ``run`` leads to."""
    found = Outlook(run, state(run), refusal="It is over." if run.finished_at is not None else "")
    if found.refusal:
        return found
    if run.status == Status.RUNNING and run.locked_until is not None and run.locked_until > run.now:
        found.lines.append(
            "It is stopped at its worker's next heartbeat, at the latest when its lease ends, at "
            f"{_at(run, run.locked_until)}."
        )
        found.warnings.append(
            "What the handler has done so far stays done, except in run.transaction(), which is rolled back."
        )
    elif run.status == Status.RUNNING:
        found.lines.append("It is cancelled at once. It has lost its worker, so no handler is running.")
    else:
        found.lines.append("It is cancelled at once, and does not run.")
    found.lines.append("It counts as neither succeeded nor dead: on_dead is not called. A retry makes it due again.")
    _add_recent(connection, run, found)
    return found


def state(run: RunOutlook) -> str:
    """Return the state of ``run`` as a sentence."""
    ended = f" since {_at(run, run.finished_at)}" if run.finished_at else ""
    match run.status:
        case Status.RUNNING:
            since = f" since {_at(run, run.started_at)}" if run.started_at else ""
            host = (run.worker or "").partition(":")[0]
            return f"Running{since} on {host}, attempt {run.attempts} of {run.max_attempts}"
        case Status.DEAD:
            error = f"{run.error_type + ': ' if run.error_type else ''}{run.last_error or ''}"[:MAX_ERROR_CHARS]
            return f"Dead{ended}" + (f", after {error}" if error else "")
        case Status.QUEUED | Status.FAILED:
            if run.attempts:
                return f"Waiting until {_at(run, run.run_at)} for attempt {run.attempts + 1} of {run.max_attempts}"
            return f"Queued, due at {_at(run, run.run_at)}"
    return run.status.capitalize() + ended


def _add_recent(connection: psycopg.Connection[object], run: RunOutlook, found: Outlook) -> None:
    latest = audit.latest(connection, run.namespace, f"run:{run.id}")
    if latest is not None:
        found.lines.append(f"Before: {sentence(latest, run.now)}.")


def _paused(run: RunOutlook) -> str:
    who = f" by {run.paused_by}" if run.paused_by else ""
    until = f" until {_at(run, run.paused_until)}" if run.paused_until else " until it is resumed"
    why = f" ({run.paused_reason})" if run.paused_reason else ""
    return f"job {run.job_type} is paused{who}{until}{why}"


def _at(run: RunOutlook, instant: object) -> str:
    assert hasattr(instant, "astimezone")
    return times.show(instant, zone(run.timezone))  # type: ignore[arg-type]
