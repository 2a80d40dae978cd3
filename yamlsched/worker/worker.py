"""The worker: claims runs, hands them to their pools, renews their leases, writes their
outcomes.

It is one thread around one event loop, because it forks. ``_submit`` (claim_loop.py) and
``_handle`` show the way of an attempt: claimed, submitted, ended, recorded. Tasks of their own
claim (claim_loop.py), renew leases (leases.py) and write outcomes (outcomes.py).
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from yamlsched import log
from yamlsched.db.connection import in_utc
from yamlsched.db.dsn import redactor
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.schedule.job import Queue
from yamlsched.worker import clock
from yamlsched.worker.attempt import (
    STOPPED,
    Attempt,
    Ended,
    EventQueue,
    Failed,
    ReturnedUnstarted,
    Succeeded,
    WorkerLimits,
    Workload,
)
from yamlsched.worker.claim_loop import claim_continually
from yamlsched.worker.claims import Claims, Upkeep
from yamlsched.worker.forking import WORKER_SIGNALS, accept_signals
from yamlsched.worker.leases import CHECK_INTERVAL_SECONDS, Leases
from yamlsched.worker.local.pool import Pool
from yamlsched.worker.outcomes import Outcomes, PendingOutcome, SuccessesRecorded
from yamlsched.worker.queues import Queues
from yamlsched.worker.registration import Registration, own_id
from yamlsched.worker.report import RunReport
from yamlsched.worker.sessions import Database, WorkerSessions
from yamlsched.worker.stderr import non_blocking_stderr

# for which a worker that holds no lease waits for a database that is away
AWAY_TIMEOUT_SECONDS = 30.0
IDLE_CHECK_INTERVAL_SECONDS = 0.5
STOP_TIMEOUT_SECONDS = 5.0  # for which a worker that was stopped tries to reach the database
SIGNAL_DELAY_SECONDS = 0.05  # for our own SIGTERM to arrive, after a command was ended by one

NOT_STARTED = AttemptEnd(EndKind.RELEASED, "no process has room for it")
# of a coroutine that needs a process to itself: those of its queue go on being claimed
SUSPECT_DELAY = timedelta(seconds=2)


class Worker:
    """Executes the due runs of ``workload``; see the module.

    A continuous worker waits for more when nothing is due, until it is stopped. ``events`` is the
    queue that pools report to: ``processes`` for attempts with a process to themselves, and what
    ``create_pool`` returns for the coroutines of a queue.
    """

    def __init__(
        self,
        workload: Workload,
        processes: Pool,
        events: EventQueue,
        limits: WorkerLimits,
        create_pool: Callable[[str, Queue, Workload], Pool],
        is_continuous: bool = False,
        registration: Registration | None = None,
    ) -> None:
        self.workload, self.events = workload, events
        self.registration = registration
        self.limits, self.is_continuous = limits, is_continuous
        self.claimed_count, self._started_at = 0, clock.now()
        self.payload_chars = 1  # of the largest payload that the last claim took
        self.report = RunReport()
        self.attempts: set[Attempt] = set()  # from claim to outcome
        self.stopped_at: float | None = None  # when it was asked to stop
        self.stop_handlers_at: float | None = None  # the end of the grace period
        self._is_paused = self.is_claiming = self._is_outdated = False
        # where the links of the file's path led when it was last read
        self.read_path = str(workload.file)
        # called when they lead elsewhere; without it, it is the end
        self.on_moved: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self.may_claim = asyncio.Event()
        self.busy_at = clock.now()  # when it last had an attempt
        self.database = Database(workload.dsn)
        self.sessions = sessions = WorkerSessions(
            self.database, self._on_notify if is_continuous else None
        )
        namespace = workload.namespace
        name = own_id() if registration is None else registration.name.claims()
        self.queues = Queues(
            processes,
            lambda queue: Claims(sessions.claim, namespace, name, queue, polls=is_continuous),
            create_pool,
        )
        self.queues.open(workload)
        self.upkeep = Upkeep(sessions.claim, namespace, self.report, self.attempts, is_continuous)
        self._learn_secrets()
        self.outcomes = Outcomes(sessions.write, namespace, events, redact=self.redact)
        self.leases = Leases(sessions.lease, self.attempts, self.queues.stop, redact=self.redact)

    def _learn_secrets(self) -> None:
        """Mask the values of this process's secret variables, also those that the file
        names now.
        """
        names = {name for job in self.workload.jobs.values() for name in job.secret_env}
        self._redact = redactor(self.workload.dsn, names)
        log.set_mask(self._redact)

    def redact(self, text: str) -> str:
        """Return a string without secrets."""
        return self._redact(text)

    # -- an attempt: claimed, submitted, ended, recorded -------------------------------------------

    def _handle(self, event: object) -> None:
        match event:
            case Succeeded(attempts):
                self.outcomes.add_successes(attempts)
            case Ended(attempt, end):
                if self.stopped_at is not None and event.is_terminated:
                    # a signal to all processes at once reached it too
                    attempt.stopped = attempt.stopped or STOPPED
                if attempt.stopped is not None and not end.is_success:
                    end = attempt.stopped._replace(
                        stack=end.stack,
                        output=end.output,
                        omitted_bytes=end.omitted_bytes,
                        usage=end.usage,
                    )
                self.outcomes.add(attempt, end)
            case ReturnedUnstarted(attempts):
                for attempt in attempts:
                    end = attempt.stopped or (NOT_STARTED if self.stopped_at is None else STOPPED)
                    if attempt.job.is_async and not attempt.is_coroutine:
                        end = end._replace(delay=SUSPECT_DELAY)
                    self.outcomes.add(attempt, end._replace(has_begun=False))
            case SuccessesRecorded(attempts):
                self.attempts.difference_update(attempts)
                self.report.note_successes(attempts)
                self.queues.poll_after(attempts)
            case PendingOutcome(attempt=attempt) as pending:
                self.attempts.discard(attempt)
                if attempt.is_lost:
                    self.queues.poll_now()
                    return
                self.report.note_outcome(pending)
                if claims := self.queues.claims.get(attempt.job.queue):
                    claims.note_outcome(pending.outcome, pending.end.kind is EndKind.RELEASED)
                self.queues.poll_after([attempt])
            case Failed(error) if self._failure is None:
                self._failure = error
                self.stopped_at = self.stop_handlers_at = clock.now()
                self._release_unstarted()
                self._stop_executing(grace=0)
                asyncio.get_running_loop().call_later(STOP_TIMEOUT_SECONDS, self.events.wake)

    # -- when it may claim -------------------------------------------------------------------------

    def is_idle_for(self, seconds: float) -> bool:
        return not self.attempts and clock.now() - self.busy_at >= seconds

    def must_not_claim(self) -> bool:
        return self._is_paused or not self.is_within_limits() or self.has_moved()

    def is_within_limits(self) -> bool:
        idle_exit = self.limits.idle_exit
        has_idled = idle_exit is not None and self.is_idle_for(idle_exit.total_seconds())
        max_runs = self.limits.max_runs
        is_used_up = max_runs is not None and self.claimed_count >= max_runs
        is_over = has_idled or is_used_up or self.seconds_left() <= 0
        return self.stopped_at is None and not is_over and not self._is_outdated

    def seconds_left(self) -> float:
        """Return for how long it claims."""
        max_time = self.limits.max_time
        if max_time is None:
            return math.inf
        return self._started_at + max_time.total_seconds() - clock.now()

    def has_moved(self) -> bool:
        """Return whether a link of the file's path was switched since it was last read. Then
        nothing is claimed.

        The release of before may be deleted at any time.
        """
        place = self.workload.place
        if place is None or (real_path := os.path.realpath(place)) == self.read_path:
            return False
        log.info("file.moved", file=real_path)
        if self.on_moved is None:
            self._is_outdated = True  # a tick of the new release does the rest
        else:
            self.pause_claims(True)
            self.on_moved()
        return True

    def _on_notify(self) -> None:
        self.queues.poll_now()
        self.events.wake()

    def release_idle_capacity(self) -> None:
        """Release what waits for more runs, where none are due, or everywhere if its time is
        over.
        """
        may_claim, queues = self.is_within_limits(), self.queues
        claiming = {queues.pool(claims) for claims in queues if not claims.is_exhausted}
        for pool in queues.pools:
            if not may_claim or pool not in claiming:
                pool.release_idle_capacity()

    # -- from start to end -------------------------------------------------------------------------

    async def run(self, *companions: Callable[[Worker], Coroutine[Any, Any, None]]) -> RunReport:
        """Work until nothing is due, and return the report. ``companions`` run concurrently.

        Raises EnvironmentFailed when the database is away for too long, or nothing can be executed.
        """
        loop = asyncio.get_running_loop()
        gc.freeze()  # what is never traversed stays in pages shared with the children
        gc.set_threshold(50_000)  # what a worker creates in large numbers has no cycles
        with in_utc(), non_blocking_stderr():
            loop.set_exception_handler(
                lambda _, context: self.events.put(
                    Failed(context.get("exception") or Exception(context))
                )
            )
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(number, self.stop)
            loop.add_signal_handler(signal.SIGCHLD, self.queues.check)
            parts = (
                claim_continually(self),
                self.outcomes.write(),
                self.leases.renew_due(),
                self._check_regularly(),
                *(companion(self) for companion in companions),
            )
            tasks = [asyncio.create_task(part) for part in parts]
            for task in tasks:
                task.add_done_callback(self._on_task_done)
            loop.call_soon(accept_signals)  # when a companion has set its own handler
            try:
                while not self._is_finished():
                    for event in await self.events.wait():
                        is_terminated = isinstance(event, Ended) and event.is_terminated
                        if is_terminated and self.stopped_at is None:
                            await asyncio.sleep(SIGNAL_DELAY_SECONDS)
                        self._handle(event)
                    self.may_claim.set()
                if self._failure is not None:
                    raise self._failure
                return self.report
            finally:
                await self._close(tasks)
                for number in WORKER_SIGNALS:
                    loop.remove_signal_handler(number)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.events.put(Failed(error))

    async def _check_regularly(self) -> None:
        """Check everything that depends on the clock, until cancelled."""
        while True:
            is_idle = self.is_continuous and not self.attempts
            await asyncio.sleep(IDLE_CHECK_INTERVAL_SECONDS if is_idle else CHECK_INTERVAL_SECONDS)
            self.queues.check()
            self.leases.check()
            # until it has looked for due runs once, it is not idle
            if self.attempts or (not self.upkeep.next_at and self.database.away_since is None):
                self.busy_at = clock.now()
            if self.stop_handlers_at is not None and clock.now() >= self.stop_handlers_at:
                self._stop_executing()
            self.release_idle_capacity()
            self.events.wake()

    def _is_finished(self) -> bool:
        is_away = self.database.away_since is not None
        if self._failure is not None and self.stopped_at is not None:
            # what could not be released is retried when its leases expire
            is_over = clock.now() - self.stopped_at >= STOP_TIMEOUT_SECONDS
            return is_away or is_over or not self.attempts
        if self._must_give_up():
            reason = f"the database was lost and did not return: {self.database.reason}"
            if count := len(self.attempts):
                reason += f"; its unfinished runs ({count}) are retried when their leases expire"
            raise EnvironmentFailed(reason)
        has_lost_claims = any(claims.lost for claims in self.queues)
        if self.attempts or has_lost_claims or (self.is_claiming and not is_away):
            return False
        if not self.is_within_limits():
            if is_away and self.stopped_at is None:
                raise EnvironmentFailed(f"the database was lost: {self.database.reason}")
            return True
        is_idle = all(claims.is_exhausted and not claims.retries for claims in self.queues)
        has_swept = self.upkeep.next_at > 0.0 and not self.upkeep.has_offered
        return is_idle and not self.is_continuous and has_swept

    def _must_give_up(self) -> bool:
        """Return whether waiting for the database is pointless: every lease has ended, or the
        worker is to stop.
        """
        away_since, now = self.database.away_since, clock.now()
        if away_since is None or any(attempt.took is None for attempt in self.attempts):
            return False
        if self.stopped_at is not None:
            return now - max(away_since, self.stopped_at) > STOP_TIMEOUT_SECONDS
        if self.is_continuous or any(
            now < held.lease_ends_at for held in self.attempts if not held.is_lost
        ):
            return False
        return now - away_since > AWAY_TIMEOUT_SECONDS or not self.is_within_limits()

    # -- control -----------------------------------------------------------------------------------

    def reload(self, workload: Workload) -> None:
        """Claim the runs of ``workload`` from now on, and import its handlers."""
        self.workload = workload
        self._learn_secrets()
        self.queues.open(self.workload)
        self.reload_handlers()
        self.queues.poll_now()

    def reload_handlers(self) -> None:
        """Import handlers again for attempts that start from now on."""
        for pool in self.queues.pools:
            pool.reload(self.workload)
        self.events.wake()

    def pause_claims(self, is_paused: bool) -> None:
        """Claim nothing for now, or claim again. Attempts continue."""
        if self._is_paused and not is_paused:
            self.queues.poll_now()
        self._is_paused = is_paused
        self.events.wake()

    def stop(self) -> None:
        """Stop claiming; handlers have the grace period to finish. A second call stops them at
        once.
        """
        if self.stopped_at is None:
            self.stopped_at = clock.now()
            self.stop_handlers_at = self.stopped_at + self.limits.grace.total_seconds()
            log.info("worker.stopping", in_hand=len(self.attempts), grace=self.limits.grace)
            self._release_unstarted()
        else:
            self.stop_handlers_at = clock.now()
            self._stop_executing(grace=0)
        self.events.wake()

    def _release_unstarted(self) -> None:
        for pool in self.queues.pools:
            pool.release_unstarted()

    def _stop_executing(self, grace: float | None = None) -> None:
        executing = [attempt for attempt in self.attempts if attempt.took is None]
        for attempt in executing:
            attempt.stopped = attempt.stopped or STOPPED
        self.queues.stop(executing, grace)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        is_away = self.database.away_since is not None
        self.database.is_cut = self.sessions.cut()
        if self.database.is_cut:
            # for the tasks to see it: cancelled, they would wait for the server
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.database.is_cut = False
        await asyncio.gather(*(pool.close() for pool in self.queues.pools))
        if self.registration is not None and not is_away:
            await self.registration.end(self.sessions.claim)
        await self.sessions.drop()
