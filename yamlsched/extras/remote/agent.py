"""The agent: executes one attempt on the engine's host, and only if it is the first to begin it.

It takes the begin ticket under a live lease, executes the attempt in a child process like a
worker's own, checks the lease, and writes how the attempt ended into the ticket before it exits.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from datetime import timedelta
from enum import Enum
from functools import partial
from pathlib import Path

import psycopg

from yamlsched import log
from yamlsched.db.connection import in_utc
from yamlsched.db.dsn import redactor
from yamlsched.durations import show
from yamlsched.extras.remote import tickets
from yamlsched.extras.remote.spec import ticket_of
from yamlsched.runs import statements
from yamlsched.runs.claiming import ClaimScope
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, Outcome, Status, storable
from yamlsched.schedule.job import Job
from yamlsched.schedule.startable import missing_variables
from yamlsched.worker import clock, forking
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.executor import Ended, EventQueue, Succeeded
from yamlsched.worker.leases import (
    CHECK_INTERVAL_SECONDS,
    LOST,
    LOST_GRACE_SECONDS,
    MIN_MARGIN_SECONDS,
    ProgressWriter,
    margin,
    write_with,
)
from yamlsched.worker.live_output import LiveOutput, forget
from yamlsched.worker.local.pool import ProcessPool
from yamlsched.worker.sessions import (
    WORKER_SETTINGS,
    Connection,
    Database,
    Unanswered,
    WorkerSession,
)
from yamlsched.worker.stderr import non_blocking_stderr
from yamlsched.worker.tickets import encode_outcome

# between two checks: for longer, the session is closed, because the server has a limit
KEPT_OPEN_SECONDS = 10.0
RETRY_SECONDS = 0.5  # after a check without an answer
# for the server to take the outcome, also when the lease is over: it may have committed
END_TIMEOUT_SECONDS = 60.0
STATEMENT_TIMEOUT_SECONDS = 10.0
MIN_RETURN_DELAY, MAX_RETURN_DELAY = timedelta(seconds=10), timedelta(minutes=10)
UNCHECKED = AttemptEnd(
    EndKind.RAISED, "its agent could not check its lease in time", "LeaseUnchecked"
)
AGENT_TERMINATED = "AgentTerminated"
ORPHANED = AttemptEnd(
    EndKind.RAISED,
    "its agent was stopped: the process that had started it is gone",
    AGENT_TERMINATED,
)
TERMINATED = AttemptEnd(EndKind.RAISED, "its agent was stopped by SIGTERM", AGENT_TERMINATED)
NO_PROCESS = AttemptEnd(
    EndKind.RAISED, "no child process can be started on the engine's host", "NoProcess"
)


class AgentResult(Enum):
    """What became of the one attempt."""

    ENDED = "ended"  # the outcome is in the ticket
    REFUSED = (  # another execution has begun, the attempt was withdrawn, or the lease is over
        "refused"
    )
    UNREACHABLE = "unreachable"  # the database does not answer


class OnePermit:
    """The concurrency limit of an agent."""

    @property
    def count(self) -> int:
        return 1

    held = count

    def fill(self, wanted: int) -> int:
        return 1

    def shrink(self, wanted: int) -> None: ...


class Agent:
    """Executes the attempt of ``run``. ``file`` is schedules.yaml, which need not exist: it names
    the folder.

    ``lifeline`` is a descriptor: when it is closed at the other end, the agent stops.
    """

    def __init__(
        self,
        dsn: str,
        run: ClaimedRun,
        job: Job,
        namespace: str,
        file: Path,
        lifeline: int | None = None,
    ) -> None:
        self.ticket, self.name = (
            ticket_of(run),
            f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}",
        )
        self.attempt = Attempt(run, job, 0.0, 0.0)
        self._dsn, self._namespace = dsn, namespace
        self._database = Database(dsn)
        self._session = WorkerSession(self._database, WORKER_SETTINGS)
        self._events = EventQueue()
        workload = Workload(dsn, namespace, {job.name: job}, ClaimScope(), file)
        self._pool = ProcessPool(workload, OnePermit(), self._events)
        self._has_begun = False
        self._check_at = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._was_signalled, self._lifeline = False, lifeline
        self._progress, self._live_output = (
            ProgressWriter([self.attempt]),
            LiveOutput(redactor(dsn)),
        )
        log.set_mask(redactor(dsn))

    async def run(self) -> AgentResult:
        """Begin the attempt if it may begin, execute it, and write its outcome."""
        with in_utc(), non_blocking_stderr():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(number, self._on_signal)
            if self._lifeline is not None:
                loop.add_reader(self._lifeline, self._on_lifeline)
            try:
                begun = await self._begin()
                if not isinstance(begun, tickets.Begun):
                    return begun
                if missing := missing_variables(self.attempt.job, os.environ):
                    return await self._return(missing)
                return await self._execute()
            finally:
                await self._session.drop()

    # -- beginning ---------------------------------------------------------------------------------

    async def _begin(self) -> tickets.Begun | AgentResult:
        """Take the ticket. While the server does not answer, try again until no lease of the claim
        can be live.
        """
        deadline, was_asked = clock.now() + self.attempt.run.lease, False
        while not self._was_signalled:
            sent_at = clock.now()
            try:
                begin = partial(
                    tickets.begin, ticket=self.ticket, agent=self.name, is_repeated=was_asked
                )
                begun = await self._session.run(begin, STATEMENT_TIMEOUT_SECONDS)
            except (Unanswered, psycopg.OperationalError) as error:
                was_asked = was_asked or not isinstance(error, Unanswered) or error.was_asked
                if clock.now() > deadline:
                    return AgentResult.UNREACHABLE
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if begun is None:
                return AgentResult.REFUSED
            self._note_lease(sent_at, begun.lease_seconds)
            self.attempt.run = self.attempt.run._replace(payload=begun.payload)
            return begun
        return AgentResult.REFUSED

    async def _return(self, why: str) -> AgentResult:
        """Give the attempt back at no cost, because this host cannot execute it; later
        each time.
        """
        try:
            count = await self._session.run(
                partial(tickets.count, ticket=self.ticket), STATEMENT_TIMEOUT_SECONDS
            )
        except (Unanswered, psycopg.OperationalError):
            count = 1
        delay = min(MAX_RETURN_DELAY, MIN_RETURN_DELAY * 2 ** min(count - 1, 10))
        run = self.attempt.run
        log.warning(
            "attempt.returned",
            job=run.job_type,
            run=run.id,
            key=run.key,
            delay=show(delay),
            why=why,
        )
        return await self._write(AttemptEnd(EndKind.SNOOZED, delay=delay))

    def _note_lease(self, sent_at: float, seconds: float) -> None:
        self.attempt.renewed_at, self.attempt.lease_ends_at = sent_at, sent_at + seconds
        self._check_at = sent_at + self.attempt.run.lease / 4

    # -- executing ---------------------------------------------------------------------------------

    async def _execute(self) -> AgentResult:
        attempt, pool, self._has_begun = self.attempt, self._pool, True
        watching = asyncio.gather(self._watch(), forking.reap_orphans())
        try:
            pool.submit([attempt])
            if self._was_signalled:
                self._stop(TERMINATED)
            end = await self._wait_for_end()
            if attempt.stopped is not None and not end.is_success:
                stopped = attempt.stopped
                end = stopped._replace(
                    stack=end.stack,
                    output=end.output,
                    omitted_bytes=end.omitted_bytes,
                    usage=end.usage,
                )
            return await self._write(end)
        finally:
            for task in (watching, self._checking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(
                *(task for task in (watching, self._checking) if task), return_exceptions=True
            )
            await pool.close()

    async def _wait_for_end(self) -> AttemptEnd:
        while True:
            for event in await self._events.wait():
                match event:
                    case Ended(_, end):
                        return end
                    case Succeeded([attempt]):
                        return AttemptEnd(EndKind.RETURNED, usage=attempt.usage)
                    case _:
                        return self.attempt.stopped or NO_PROCESS

    async def _watch(self) -> None:
        """Enforce the timeout, check the lease when it is due, stop before it ends, write progress,
        until cancelled.
        """
        attempt = self.attempt
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            self._pool.check()
            now = clock.now()
            if (
                now >= attempt.lease_ends_at - margin(attempt.run.lease)
                and not attempt.has_lost_lease
            ):
                self._stop(
                    UNCHECKED,
                    max(0.0, attempt.lease_ends_at - now - CHECK_INTERVAL_SECONDS),
                    is_lost=True,
                )
            if attempt.is_lost or not (self._checking is None or self._checking.done()):
                continue
            if now >= self._check_at:
                self._checking = asyncio.create_task(self._check())
            elif self._progress.is_due():
                self._checking = asyncio.create_task(self._progress.write(self._session))

    async def _check(self) -> None:
        attempt, sent_at = self.attempt, clock.now()
        self._check_at = sent_at + RETRY_SECONDS  # if there is no answer
        try:
            state = await self._session.run(
                lambda connection: tickets.check(
                    connection, self.ticket, self.name, self.attempt.run.lease
                ),
                max(MIN_MARGIN_SECONDS, attempt.run.lease / 4),
            )
        except (Unanswered, psycopg.OperationalError):
            return
        await self._live_output.write(
            self._session, [attempt], max(MIN_MARGIN_SECONDS, attempt.run.lease / 4)
        )
        if attempt.run.lease / 4 > KEPT_OPEN_SECONDS:
            await self._session.drop()
        if state is not None and state.is_same_claim and state.status == Status.SUCCEEDED:
            # its own transaction has: what is left may take the lease
            self._check_at = sent_at + attempt.run.lease / 4
        elif state is None or not state.is_same_claim or state.status != Status.RUNNING:
            attempt.is_lost, grace = True, LOST_GRACE_SECONDS
            if attempt.is_command and state is not None and state.status == Status.CANCELLED:
                grace = max(grace, min(attempt.kill_after, attempt.lease_ends_at - clock.now()))
            self._stop(LOST, grace, is_lost=True)
        else:
            self._note_lease(sent_at, state.lease_seconds)

    def _stop(self, end: AttemptEnd, grace: float | None = None, is_lost: bool = False) -> None:
        if self.attempt.stopped is None or is_lost:
            self.attempt.stopped = self.attempt.stopped or end
            self.attempt.has_lost_lease |= is_lost
            self._pool.stop([self.attempt], grace)

    def _on_lifeline(self) -> None:
        if self._lifeline is not None and not os.read(self._lifeline, 4096):
            asyncio.get_running_loop().remove_reader(self._lifeline)
            self._was_signalled = True
            if self._has_begun:
                self._stop(ORPHANED)

    def _on_signal(self) -> None:
        """Stop the attempt; a second signal kills it at once."""
        if not self._has_begun:
            self._was_signalled = True
        elif self._was_signalled:
            self._pool.stop([self.attempt], 0)
        else:
            self._was_signalled = True
            self._stop(TERMINATED)

    # -- the outcome -------------------------------------------------------------------------------

    async def _write(self, end: AttemptEnd) -> AgentResult:
        """Write the outcome into the ticket, until the server has it or it can matter no more."""
        redact = redactor(self._dsn)
        end = end._replace(
            error=redact(storable(end.error)),
            stack=redact(storable(end.stack)),
            output=redact(storable(end.output)),
        )
        deadline = max(self.attempt.lease_ends_at, clock.now() + END_TIMEOUT_SECONDS)
        while True:
            try:
                await self._session.run(partial(self._write_once, end), STATEMENT_TIMEOUT_SECONDS)
                return AgentResult.ENDED
            except (Unanswered, psycopg.OperationalError):
                if clock.now() > deadline:
                    return AgentResult.UNREACHABLE
                await asyncio.sleep(RETRY_SECONDS)

    async def _write_once(self, end: AttemptEnd, connection: Connection) -> None:
        attempt, outcome = self.attempt, encode_outcome(end, self.attempt.took or 0.0)
        await write_with(
            connection, [attempt], partial(tickets.end, connection, self.ticket, self.name, outcome)
        )
        if (
            end.output
            and (attempt.is_lost or end.kind is EndKind.COMMITTED)
            and attempt.keeps_output(end)
        ):
            kept = Outcome(Status.CANCELLED, output=end.output, omitted_bytes=end.omitted_bytes)
            await statements.keep_outputs(connection, [(attempt.run, kept)])
        # of a run that was cancelled, or that its handler's own transaction has finished
        await statements.let_go(connection, self._namespace, [attempt.run])
        await forget(connection, [attempt])


def execute(
    dsn: str, run: ClaimedRun, job: Job, namespace: str, file: Path, stops_with_stdin: bool = False
) -> AgentResult:
    """Execute the attempt of ``run``, and report if it must not or cannot begin.

    ``stops_with_stdin``: stop when stdin is closed. What is executed gets an empty one.
    """
    lifeline = None
    if stops_with_stdin:
        lifeline, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
    agent = Agent(dsn, run, job, namespace, file, lifeline)
    result = asyncio.run(agent.run())
    number = log.NumberOf(run.attempt, run.max_attempts)
    names = {"job": run.job_type, "run": run.id, "key": run.key, "attempt": number}
    if result is AgentResult.REFUSED:
        why = (
            "another execution has begun, it was withdrawn, its lease has ended, or its job is"
            " paused"
        )
        log.warning("attempt.not_begun", **names, why=why)
    return result
