"""Leases: renewed every quarter of their length, all by one statement; handlers are stopped before
a lease ends. And what is shown of running attempts.

Their progress is written once a second, the end of their output with the renewals of their leases,
and deleted when they end: a run that is lost with its host keeps its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import psycopg

from yamlsched import log
from yamlsched.db.query import AsyncConnection, execute
from yamlsched.runs.lifecycle import AttemptEnd, EndKind, Keep, Status, last_bytes, storable
from yamlsched.worker import clock, statements
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.sessions import Unanswered, WorkerSession

INTERVAL_SECONDS = 1.0
MAX_OUTPUT_BYTES = 8_192
TIMEOUT_SECONDS = 10.0


async def write_last_progress(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    """Write the last progress of ``attempts``, whose outcomes are written next."""
    if reporting := _reporting(attempts):
        ids = [attempt.run.id for attempt in reporting]
        async with connection.transaction():
            await execute(connection, "runs.lock", ids=ids)  # what is locked would be skipped
            await _write(connection, reporting)


async def _write(connection: AsyncConnection, attempts: Sequence[Attempt]) -> None:
    reports = [
        (attempt.run, attempt.progress) for attempt in attempts if attempt.progress is not None
    ]
    written = await statements.report_progress(connection, reports)
    for attempt, (run, progress) in zip(attempts, reports, strict=True):
        if run.id in written:
            attempt.written_progress = progress


def _reporting(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return those of ``attempts`` whose progress is not in the database yet."""
    return [
        attempt
        for attempt in attempts
        if attempt.progress != attempt.written_progress and not attempt.is_lost
    ]


def note_output(attempt: Attempt, redact: Callable[[str], str]) -> bool:
    """Set the last whole lines of its output, and return whether they are new.

    In a line that has not ended, a secret may be cut, and would not be found.
    """
    may_print = (
        attempt.took is None and not attempt.is_lost and attempt.job.output.keep is not Keep.NEVER
    )
    if attempt.output is None or not may_print:
        return False
    content, total = attempt.output.tail()
    whole = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
    text = storable(redact(whole.decode("utf-8", "replace")))
    kept, _ = last_bytes(text, MAX_OUTPUT_BYTES)
    omitted_bytes = max(0, total - len(content) + len(whole) - len(kept.encode()))
    before, attempt.live_output = attempt.live_output, (kept, omitted_bytes)
    return bool(kept) and before != attempt.live_output


async def _write_outputs(attempts: list[Attempt], connection: AsyncConnection) -> None:
    outputs = [attempt.live_output or ("", 0) for attempt in attempts]
    await execute(
        connection,
        "progress.write_outputs",
        **statements.fence(attempt.run for attempt in attempts),
        outputs=[text for text, _ in outputs],
        omitted=[omitted_bytes for _, omitted_bytes in outputs],
    )


async def forget_output(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    """Delete what was written of ``attempts``, which have ended: what is kept of their output is
    elsewhere.
    """
    if written := [attempt.run for attempt in attempts if attempt.live_output is not None]:
        await execute(connection, "progress.forget_outputs", **statements.fence(written))


CHECK_INTERVAL_SECONDS = 0.1
MIN_MARGIN_SECONDS = 0.5
# for a coroutine whose run an operator has cancelled: its process has other runs
ASYNC_CANCEL_GRACE_SECONDS = 3.0
LOST_GRACE_SECONDS = 0.5  # between SIGTERM and SIGKILL, for a handler whose run is lost
LOST = AttemptEnd(EndKind.RELEASED, "its lease was lost")
UNRENEWED = AttemptEnd(EndKind.RELEASED, "its lease could not be renewed")


def margin(lease: float) -> float:
    """Return how long before the end of a lease that was not renewed its handler is stopped; both
    in seconds.
    """
    return max(0.15 * lease, MIN_MARGIN_SECONDS)


class Leases:
    """Keeps the leases of ``attempts``, the set of all that the worker holds, which changes in
    between.
    """

    def __init__(
        self,
        session: WorkerSession,
        attempts: set[Attempt],
        stop: Callable[[list[Attempt], float], None],
        redact: Callable[[str], str],
    ) -> None:
        self._session, self._attempts, self._stop_executing = session, attempts, stop
        self._redact = redact
        self._progress_at = 0.0  # when new progress is written next
        self._is_due = asyncio.Event()

    async def renew_due(self) -> None:
        """Renew leases whenever ``check`` has found some that are due, until cancelled. Write what
        is new.
        """
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            now = clock.now()
            due: dict[int, Attempt] = {}
            # by age of the claim: two claims of one run may have the same number of attempt, after
            # a refund
            for attempt in sorted(
                self._attempts, key=lambda attempt: (attempt.run.attempt, attempt.renewed_at)
            ):
                if _is_renewal_due(attempt, now):
                    # this worker has claimed it again since: the earlier claim has ended
                    if attempt.run.id in due:
                        self._lose(due[attempt.run.id], statements.LOST)
                    due[attempt.run.id] = attempt
            if due:
                await self._renew(due, now)
            if self.reporting():
                await self.write_progress()

    async def _renew(self, due: dict[int, Attempt], sent_at: float) -> None:
        async def renew(connection: AsyncConnection) -> tuple[set[int], dict[int, str]]:
            renewed = await statements.heartbeat(
                connection, [attempt.run for attempt in due.values()]
            )
            others = [attempt.run for attempt in due.values() if attempt.run.id not in renewed]
            return renewed, await statements.ownership(connection, others) if others else {}

        try:
            renewed, ownership = await self._session.run(renew, TIMEOUT_SECONDS)
        except (Unanswered, psycopg.OperationalError):
            return  # again in a moment; `check` sees to it that no handler outlives its lease
        for run_id in renewed:
            attempt = due[run_id]
            attempt.renewed_at, attempt.lease_ends_at = sent_at, sent_at + attempt.run.lease
        for run_id, owner in ownership.items():
            # neither renewed nor lost: another transaction has locked the row, about to finish the
            # run
            attempt = due[run_id]
            is_retried = owner == Status.QUEUED and attempt.took is None  # after it was cancelled
            is_lost = owner in (statements.LOST, Status.CANCELLED) or is_retried
            if is_lost and attempt in self._attempts:
                self._lose(attempt, Status.CANCELLED if is_retried else owner)
        await self._write_outputs([due[run_id] for run_id in renewed])

    def check(self) -> None:
        """Stop attempts that are about to outlive their leases, and have those renewed that are
        due.

        Called several times a second while the worker holds attempts.
        """
        now = clock.now()
        due = [attempt for attempt in self._attempts if _is_renewal_due(attempt, now)]
        for attempt in due:
            if attempt.took is None and now >= attempt.lease_ends_at - margin(attempt.run.lease):
                if attempt.stopped is None:
                    run = attempt.run
                    log.warning("lease.unrenewed", job=run.job_type, run=run.id, key=run.key)
                self._stop(
                    attempt,
                    UNRENEWED,
                    max(0.0, attempt.lease_ends_at - now - CHECK_INTERVAL_SECONDS),
                )
        if due or self.reporting():
            self._is_due.set()

    def reporting(self) -> list[Attempt]:
        """Return executing attempts with new progress, once a second. The last progress is written
        with the outcome.
        """
        if clock.now() < self._progress_at:
            return []
        return [attempt for attempt in _reporting(self._attempts) if attempt.took is None]

    async def write_progress(self) -> None:
        """Write new progress. What the server does not take is written the next time, or with the
        outcome.
        """
        attempts, self._progress_at = self.reporting(), clock.now() + INTERVAL_SECONDS
        with contextlib.suppress(Unanswered, psycopg.OperationalError):
            await self._session.run(partial(_write, attempts=attempts), TIMEOUT_SECONDS)

    async def _write_outputs(self, attempts: Iterable[Attempt]) -> None:
        """Write what is new of the output of ``attempts``, whose leases were renewed. What the
        server does not take is left out.
        """
        if changed := [each for each in attempts if note_output(each, self._redact)]:
            with contextlib.suppress(Unanswered, psycopg.Error):
                await self._session.run(partial(_write_outputs, changed), TIMEOUT_SECONDS)

    def _lose(self, attempt: Attempt, why: str) -> None:
        if attempt.mark_lost(why):
            grace = LOST_GRACE_SECONDS
            if why == Status.CANCELLED:  # no other worker gets the run before the lease would end
                wanted = ASYNC_CANCEL_GRACE_SECONDS if attempt.is_coroutine else 0.0
                if attempt.is_command:
                    wanted = attempt.kill_after
                grace = max(grace, min(wanted, attempt.lease_ends_at - clock.now()))
            self._stop(attempt, LOST, grace)

    def _stop(self, attempt: Attempt, end: AttemptEnd, grace: float) -> None:
        attempt.stopped, attempt.has_lost_lease = attempt.stopped or end, True
        self._stop_executing([attempt], grace)


def _is_renewal_due(attempt: Attempt, now: float) -> bool:
    return (
        now - attempt.renewed_at >= attempt.run.lease / 4 - CHECK_INTERVAL_SECONDS
        and not attempt.is_lost
    )
