"""Attempts on executors whose workers have left them: any worker applies the outcomes that agents
have written.

What no agent has begun when its lease ends is refunded: its ticket is taken, so that none can begin
it later.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.db import blocking
from yamlsched.db.query import load
from yamlsched.runs import claiming, statements
from yamlsched.runs.lifecycle import (
    AttemptEnd,
    ClaimedRun,
    EndKind,
    Keep,
    Outcome,
    after_attempt,
    in_ascii,
)
from yamlsched.schedule.job import Job, Output, load_backoff
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.local.protocol import TaskEnd

AGENT_LOST = "AgentLost"
"""The error_type of an attempt whose agent is gone, or wrote what cannot be read."""
UNREADABLE = AttemptEnd(
    EndKind.RAISED, "its agent wrote an outcome that cannot be read", AGENT_LOST
)
MAX_RETURN_DELAY_SECONDS = 600.0
# SQLSTATE classes of errors that no retry changes: data, constraints, limits, and our own functions
REJECTED = ("22", "23", "54", "P0", "YS")


class Settled(NamedTuple):
    """An attempt whose outcome is in the database now; ``run_at`` is when its run is due again."""

    attempt: Attempt
    end: AttemptEnd
    outcome: Outcome
    run_at: datetime | None


def encode_outcome(end: AttemptEnd, took: float) -> str:
    """Return an outcome as tickets store it: ASCII, whatever the encoding of the database is."""
    return json.dumps(TaskEnd(0, end, took).encode(), separators=(",", ":"))


def decode_outcome(text: str) -> TaskEnd:
    """Return the report of ``encode_outcome``; a failure for anything else."""
    try:
        return TaskEnd.decode(tuple(json.loads(text)))
    except (ValueError, TypeError):
        return TaskEnd(0, UNREADABLE)


def return_delay(count: int) -> timedelta:
    """Return when a run is due again of which ``count`` claims did not begin: later each time.

    >>> [return_delay(count).total_seconds() for count in (1, 2, 20)]
    [1.0, 2.0, 600.0]
    """
    return timedelta(seconds=min(MAX_RETURN_DELAY_SECONDS, 2.0 ** min(max(0, count - 1), 10)))


async def settle(
    connection: Any,
    namespace: str | None,
    held: Collection[int] = (),
    ids: Sequence[int] | None = None,
) -> list[Settled]:
    """Apply outcomes in tickets and refund what has not begun, but not of ``held``; or only the
    outcomes of ``ids``.
    """
    parameters = {"namespace": namespace, "held": list(held), "ids": ids}
    rows = await (await connection.execute(load("begins")["unsettled"], parameters)).fetchall()
    settled = [await _settle(connection, row.namespace, row) for row in rows]
    return [outcome for outcome in settled if outcome is not None]


def apply_outcomes(session: psycopg.Connection[Any], ids: Sequence[int]) -> None:
    """Apply the outcomes that are in the tickets of the runs ``ids``, in the caller's
    transaction.
    """
    blocking.run(settle(blocking.Session(session), None, ids=list(ids)))


async def _settle(connection: Any, namespace: str, row: Any) -> Settled | None:
    """Apply what the ticket of ``row`` says. None: another worker has, or an agent has begun just
    now.
    """
    run = ClaimedRun._make(claiming.FIELDS(row))
    job = Job(run.job_type, backoff=load_backoff(row.backoff), output=Output(Keep(row.keep)))
    attempt = Attempt(run, job, 0.0, 0.0)
    if row.outcome is None:
        if not (count := await _withdraw(connection, row)):
            return None
        end = AttemptEnd(
            EndKind.RELEASED, "its worker was lost before it had begun", delay=return_delay(count)
        )
    else:
        report = decode_outcome(row.outcome)
        end, attempt.took = report.end or AttemptEnd(EndKind.RELEASED), report.took
        if end.output and not attempt.keeps_output(end):
            end = end._replace(output="")
    outcome = after_attempt(run, end, job.backoff, random.random())
    try:
        written = await _write(connection, namespace, run, end, outcome)
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith(REJECTED):
            raise
        why = str(error.diag.message_primary or error)
        end = AttemptEnd(
            EndKind.RAISED, f"its outcome could not be stored: {why}", "OutcomeRefused"
        )
        outcome = in_ascii(after_attempt(run, end, job.backoff, random.random()))
        written = await _write(connection, namespace, run, end, outcome)
    return Settled(attempt, end, outcome, written[run.id]) if run.id in written else None


async def _write(
    connection: Any, namespace: str, run: ClaimedRun, end: AttemptEnd, outcome: Outcome
) -> dict[int, datetime | None]:
    async def nothing_before() -> None: ...

    if end.enqueued:
        return await statements.finish_with(
            connection, namespace, run, outcome, end.enqueued, nothing_before
        )
    return await statements.finish(connection, namespace, [(run, outcome)])


async def _withdraw(connection: Any, row: Any) -> int:
    """Take the ticket of ``row``, unless an agent has it. Return how many tickets the run has; 0:
    an agent has it.
    """
    ticket = {"run_ids": [row.id], "attempts": [row.attempt], "tokens": [row.locked_by]}
    taken = await (await connection.execute(load("begins")["withdraw"], ticket)).fetchone()
    if taken is None and not row.is_withdrawn:
        return 0
    counted: Any = await (
        await connection.execute(load("begins")["count"], {"run_id": row.id})
    ).fetchone()
    return int(counted.tickets)
