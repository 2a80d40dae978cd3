"""Outcomes: written in batches, each only if its run still belongs to its attempt, until the answer
is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import psycopg

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.db.query import AsyncConnection
from yamlsched.runs.lifecycle import (
    AttemptEnd,
    EndKind,
    Outcome,
    Status,
    after_attempt,
)
from yamlsched.worker import clock, leases, statements
from yamlsched.worker.attempt import Attempt, EventQueue
from yamlsched.worker.sessions import Unanswered, WorkerSession

MAX_BATCH = 1_000  # outcomes in one statement
# SQLSTATE classes of errors that no retry changes: data, constraints, limits, and our own functions
REJECTED = ("22", "23", "54", "P0", "YS")
# plain successes in one statement: larger ones are quicker, but all other work waits longer
MAX_SUCCESS_BATCH = 2_000
MAX_UNWRITTEN = 4_000  # outcomes, with which nothing more is claimed
MAX_UNWRITTEN_CHARS = 1 << 24  # of their outputs, likewise
TIMEOUT_SECONDS = 20.0
FAN_OUT_SECONDS_PER_RUN = 1e-3  # more for each run of a fan-out
MAX_FAN_OUT_TIMEOUTS = 3  # of one fan-out: then its attempt has failed
RETRY_SECONDS = 1.0  # after the server cancelled a statement for one outcome
MIN_PAUSE_SECONDS = 0.05


class SuccessesRecorded(NamedTuple):
    """The plain successes of ``attempts`` are in the database."""

    attempts: list[Attempt]


@dataclass(slots=True, eq=False)
class PendingOutcome:
    """An outcome on its way to the database, and the event that it is done."""

    attempt: Attempt
    end: AttemptEnd
    outcome: Outcome
    is_done: bool = False  # in the database, or discarded because the run is not ours
    run_at: datetime | None = None  # when the run is due again
    # the database rejected the first outcome, and this failure took its place
    is_replaced: bool = False
    is_alone: bool = False  # written by itself: it enqueues runs, or has failed with others
    retry_at: float = 0.0
    timeouts: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be written but the output, and that the handler has ended: the run
        has its outcome, or is not ours.
        """
        return self.attempt.is_lost or self.end.kind is EndKind.COMMITTED


class Outcomes:
    """Writes the outcomes of attempts, and reports each by one of the classes above.

    Plain successes are written in bulk. If that fails, they are written like other outcomes.
    ``redact`` removes secrets from a string.
    """

    def __init__(
        self,
        session: WorkerSession,
        namespace: str,
        events: EventQueue,
        redact: Callable[[str], str],
    ) -> None:
        self._session, self._namespace = session, namespace
        self._events, self._redact = events, redact
        self._queue: deque[PendingOutcome] = deque()
        self._successes: list[Attempt] = []
        self._has_outcomes = asyncio.Event()

    def has_room(self) -> bool:
        """Return whether so few outcomes are unwritten that more attempts may start."""
        chars = sum(len(pending.outcome.output or "") for pending in self._queue)
        unwritten = len(self._queue) + len(self._successes)
        return unwritten < MAX_UNWRITTEN and chars < MAX_UNWRITTEN_CHARS

    def add(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Have the outcome of ``end`` written soon."""
        attempt.took = attempt.took or 0.0
        if end.output and not attempt.keeps_output(end):
            end = end._replace(output="")
        outcome = self._outcome(attempt, end)
        is_alone = bool(end.enqueued)
        self._enqueue(PendingOutcome(attempt, end._replace(output=""), outcome, is_alone=is_alone))

    def add_successes(self, attempts: list[Attempt]) -> None:
        """Have the plain successes of ``attempts`` written soon."""
        for attempt in attempts:
            if attempt.has_turn:
                self.add(attempt, AttemptEnd(EndKind.RETURNED, usage=attempt.usage))
        self._successes += [attempt for attempt in attempts if not attempt.has_turn]
        self._has_outcomes.set()

    def _outcome(self, attempt: Attempt, end: AttemptEnd) -> Outcome:
        return after_attempt(attempt.run, end, attempt.job.backoff, random.random(), self._redact)

    def _enqueue(self, pending: PendingOutcome) -> None:
        self._queue.append(pending)
        self._has_outcomes.set()

    def _finish(self, pending: PendingOutcome, run_at: datetime | None = None) -> None:
        pending.is_done, pending.run_at = True, run_at
        self._events.put(pending)

    # -- writing -----------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write outcomes as they come, until cancelled."""
        while True:
            await self._has_outcomes.wait()
            self._has_outcomes.clear()
            while self._queue or self._successes:
                if self._successes:
                    await self._write_successes()
                if batch := self._next_batch():
                    await self._write(batch)
                elif self._queue and not self._successes:
                    await asyncio.sleep(MIN_PAUSE_SECONDS)

    async def _write_successes(self) -> None:
        """Write plain successes."""
        batch = self._successes[:MAX_SUCCESS_BATCH]
        self._successes = self._successes[MAX_SUCCESS_BATCH:]
        is_written = False
        with contextlib.suppress(Unanswered, psycopg.Error):
            runs = [(attempt.run, attempt.usage) for attempt in batch]

            async def succeed(connection: AsyncConnection) -> bool:
                await leases.write_last_progress(connection, batch)
                is_written = await statements.succeed(connection, runs)
                await leases.forget_output(connection, batch)
                return is_written

            is_written = await self._session.run(succeed, TIMEOUT_SECONDS)
        if is_written:
            self._events.put(SuccessesRecorded(batch))
        else:
            for attempt in batch:
                self.add(attempt, AttemptEnd(EndKind.RETURNED, usage=attempt.usage))

    def _next_batch(self) -> list[PendingOutcome]:
        """Take from the queue what is written together."""
        now, batch, later = clock.now(), list[PendingOutcome](), list[PendingOutcome]()
        while self._queue and len(batch) < MAX_BATCH:
            pending = self._queue.popleft()
            if pending.retry_at > now:
                later.append(pending)
            elif pending.is_alone:
                if batch:
                    self._queue.appendleft(pending)
                else:
                    batch = [pending]
                break
            else:
                batch.append(pending)
        self._queue.extend(later)
        return batch

    async def _write(self, batch: list[PendingOutcome]) -> None:
        """Write ``batch``; what could not be written is enqueued again.

        When the server gives up on a statement, because of a lock or a timeout, each is written by
        itself: one that cannot be written must not block the others.
        """
        timeout = TIMEOUT_SECONDS + FAN_OUT_SECONDS_PER_RUN * _run_count(batch[0])
        try:
            await self._session.run(partial(self._write_once, batch), timeout)
        except Unanswered as error:
            # the next attempt finds out what was written
            if error.was_asked:
                self._count_timeout(batch[0])
        except psycopg.Error as error:
            is_rejected = (error.sqlstate or "").startswith(REJECTED)
            if not is_rejected and not isinstance(error, psycopg.OperationalError):
                raise
            if len(batch) > 1:
                for pending in batch:
                    pending.is_alone = True
            elif is_rejected:
                self._replace(batch[0], error)
            else:
                log.warning("database.failed", error=reason(error))
                batch[0].retry_at = clock.now() + RETRY_SECONDS
                if isinstance(error, psycopg.errors.QueryCanceled):
                    self._count_timeout(batch[0])
        for pending in batch:
            if not pending.is_done:
                self._enqueue(pending)

    async def _write_once(self, batch: list[PendingOutcome], connection: AsyncConnection) -> None:
        """Write ``batch``, and find out what became of those runs of which nothing was written."""
        if settled := [pending for pending in batch if pending.is_settled]:
            outcomes = [(pending.attempt.run, pending.outcome) for pending in settled]
            await statements.keep_outputs(connection, outcomes)
            await statements.unlock(
                connection, self._namespace, [pending.attempt.run for pending in settled]
            )
            await leases.forget_output(connection, [pending.attempt for pending in settled])
            for pending in settled:
                self._finish(pending)
            if not (batch := [pending for pending in batch if not pending.is_done]):
                return
        attempts = [pending.attempt for pending in batch]
        outcomes = [(pending.attempt.run, pending.outcome) for pending in batch]
        await leases.write_last_progress(connection, attempts)
        written = await statements.finish(
            connection, self._namespace, outcomes, enqueued=batch[0].end.enqueued
        )
        dead = [
            pending.attempt.run.id
            for pending in batch
            if pending.outcome.status is Status.DEAD and pending.attempt.job.pause_after
        ]
        if dead:
            await statements.pause_dying(connection, self._namespace, dead)
        await leases.forget_output(
            connection, [attempt for attempt in attempts if attempt.run.id in written]
        )
        for pending in batch:
            if pending.attempt.run.id in written:
                self._finish(pending, written[pending.attempt.run.id])
        if rest := [pending for pending in batch if not pending.is_done]:
            ownership = await statements.ownership(
                connection, [pending.attempt.run for pending in rest]
            )
            for pending in rest:
                self._resolve(pending, ownership[pending.attempt.run.id])

    def _resolve(self, pending: PendingOutcome, owner: str) -> None:
        """Act on who owns a run of which nothing was written; one that is still ours is written
        again.
        """
        if owner == Status.SUCCEEDED:
            # by its own transaction, or by a commit whose answer was lost
            pending.outcome = pending.outcome._replace(status=Status.SUCCEEDED)
            pending.end = AttemptEnd(EndKind.COMMITTED)
        elif owner == pending.outcome.status:
            self._finish(pending)  # written before, by a commit whose answer was lost
        elif owner != statements.OURS:
            pending.attempt.mark_lost(owner)

    # -- what cannot be written --------------------------------------------------------------------

    def _count_timeout(self, pending: PendingOutcome) -> None:
        """Let a fan-out fail its attempt after a few timeouts."""
        pending.timeouts += 1
        if pending.end.enqueued and pending.timeouts >= MAX_FAN_OUT_TIMEOUTS:
            self._fail(
                pending,
                f"the server could not write the {_run_count(pending)} runs that it enqueued"
                f" within its timeout, {MAX_FAN_OUT_TIMEOUTS} times: enqueue fewer runs in one"
                " attempt, and let some of them enqueue the rest",
            )

    def _replace(self, pending: PendingOutcome, error: psycopg.Error) -> None:
        """Let an outcome that the database rejects fail its attempt."""
        if pending.is_settled:
            pending.outcome = pending.outcome._replace(output=None)
        else:
            self._fail(pending, str(error.diag.message_primary or error))

    def _fail(self, pending: PendingOutcome, why: str) -> None:
        if pending.is_replaced:
            pending.attempt.mark_lost(f"its outcome was rejected: {why}")
            self._finish(pending)
            return
        error_type = "EnqueueRefused"
        if not pending.end.enqueued:
            why, error_type = f"its outcome could not be stored: {why}", "OutcomeRefused"
        former = pending.outcome
        pending.end = AttemptEnd(EndKind.RAISED, why, error_type, usage=former.usage)
        pending.outcome = self._outcome(pending.attempt, pending.end)._replace(
            output=former.output, omitted_bytes=former.omitted_bytes
        )
        pending.is_replaced, pending.retry_at = True, 0.0


def _run_count(pending: PendingOutcome) -> int:
    """Return how many runs a handler has enqueued."""
    return sum(len(batch.payloads) for batch in pending.end.enqueued)
