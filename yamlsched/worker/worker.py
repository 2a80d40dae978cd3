"""The parent: claims, keeps leases, hands runs to children, writes outcomes.

It is one thread around one event loop, because it forks. Four tasks go on at once: claims (claims.py), renewing
leases (leases.py), writing outcomes (outcomes.py), and watching the children (pool.py); ``run`` waits for their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from yamlsched import log
from yamlsched.definitions.job import Job
from yamlsched.definitions.paths import search_path
from yamlsched.errors import EnvironmentFailed
from yamlsched.handling.sessions import ConnectionPermits
from yamlsched.runs import ClaimedRun, End, Ending, Status
from yamlsched.store import runs as store
from yamlsched.store.connection import in_utc
from yamlsched.store.dsn import redactor
from yamlsched.store.runs import Scope
from yamlsched.worker import clock
from yamlsched.worker.claims import POLL_INTERVAL_SECONDS, Claims
from yamlsched.worker.executors.processes import bootstrap
from yamlsched.worker.executors.processes.child_handle import Attempt
from yamlsched.worker.executors.processes.pool import Pool
from yamlsched.worker.executors.processes.protocol import Memory
from yamlsched.worker.leases import LOOK_EVERY, UNRENEWED, Leases, lose
from yamlsched.worker.outcomes import Item, Outcomes, Success
from yamlsched.worker.permits import ConcurrencyPermits
from yamlsched.worker.report import RunReport
from yamlsched.worker.sessions import Database, Session, Unanswered
from yamlsched.worker.stderr import NonBlockingStderr, non_blocking_stderr

# A prepared statement is planned once, perhaps while there is nothing in the table: what reads all of a table, or sorts
# what an index has in order, is no plan for later.
SESSION = {
    "statement_timeout": "15s",
    "idle_in_transaction_session_timeout": "15s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
}
PATIENCE = 30.0  # seconds for which a worker that holds no lease waits for a database that is away
LAST_WORDS = 5.0  # seconds for which a worker that was stopped tries to reach the database
IDLE_CHILDREN = 300.0  # seconds for which a worker that is_continuous keeps children that have nothing to do
GIVE_BACK_AFTER = 1.0  # seconds for which a run may wait for a child while all of them are busy with long runs
MAX_PAYLOAD_CHARS = 1 << 24  # of runs that have not ended, going by the size of those that were claimed of late
STOPPED = Ending(End.RELEASED, "stopped by a shutdown")
NOT_OURS = Ending(End.RELEASED, "its job has left this host's file, or its entry there is not valid")
NOT_STARTED = Ending(End.RELEASED, "every child is busy")
LOST = Ending(End.RELEASED, "its lease was lost")


@dataclass(frozen=True)
class Limits:
    """How much a worker takes upon itself; None: without a limit."""

    max_seconds: float | None = None  # after which it claims no more
    max_runs: int | None = None
    max_connections: int | None = None  # of this worker and its children to the database
    grace: timedelta = timedelta(seconds=30)  # for handlers, after SIGTERM


@dataclass(frozen=True)
class Work:
    """What a worker may claim, and how it is carried out."""

    dsn: str
    namespace: str
    jobs: Mapping[str, Job]
    scope: Scope
    file: Path
    path: tuple[str, ...] = ()  # of --path

    def search_path(self) -> tuple[str, ...]:
        """Return what comes first on sys.path in the children: the file's own ``paths`` among it."""
        paths = next((job.paths for job in self.jobs.values()), ())
        return tuple(map(str, search_path(self.file, paths, self.path)))


@dataclass
class Worker:
    """See the module.

    One that ``is_continuous`` looks for more when nothing is due, until it is told to stop.
    """

    work: Work
    permits: ConcurrencyPermits
    concurrency: int
    limits: Limits = Limits()
    is_continuous: bool = False
    report: RunReport = field(default_factory=RunReport)

    def __post_init__(self) -> None:
        self.waiting: deque[Attempt] = deque()  # claimed, and in no child's hands
        self.claimed = 0
        self._is_withheld = False
        self.stopped_at: float | None = None  # when it was told to stop
        self.stop_at: float | None = None  # handlers are stopped then
        self.failure: BaseException | None = None

    # -- the life of a worker --------------------------------------------------------------------------------------

    async def run(self, *others: Callable[[Worker], Coroutine[Any, Any, None]]) -> RunReport:
        """Work until nothing is due (any more), and return the report. ``others`` go on meanwhile.

        Raises EnvironmentFailed when the database is away for too long.
        """
        loop = asyncio.get_running_loop()
        with in_utc() as self.zone, non_blocking_stderr() as lines, less_garbage_collection():
            self._begin(lines)
            loop.set_exception_handler(lambda _, context: self._fail(context.get("exception") or Exception(context)))
            handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self.stop)
            handlers[signal.SIGCHLD] = self._reap
            for number, handler in handlers.items():
                loop.add_signal_handler(number, handler)
            outcomes = (self.outcomes.write(), self.outcomes.write_fan_outs())
            parts = (self._claim_on(), *outcomes, self.leases.keep(), self._watch())
            own = [asyncio.create_task(part) for part in parts]
            tasks = [*own, *(asyncio.create_task(other(self)) for other in others)]
            for task in tasks:
                task.add_done_callback(self._task_ended)
            try:
                while not self._is_over():
                    await self._changed.wait()
                    self._changed.clear()
                    if self.failure is not None:
                        raise self.failure
                return self.report
            except BaseException:
                await self._give_up(own)
                raise
            finally:
                if sum(session.cut() for session in self.sessions):
                    await asyncio.sleep(0.01)  # for the tasks to see it: cancelled, they would wait for the server
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for number in handlers:
                    loop.remove_signal_handler(number)
                await self.pool.close()
                for session in self.sessions:
                    await session.drop()
                self.permits.shrink(0)

    def _begin(self, lines: NonBlockingStderr | None) -> None:
        self.begun = clock.now()
        self.lines = lines
        self._changed, self._may_claim, self._has_work = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_dispatching = self._is_claiming = False
        self._usual_chars = 0.0  # of a payload, of late: a bit more than the mean where sizes differ
        self.database = Database(self.work.dsn)
        on_open = store.listen if self.is_continuous else None
        self.sessions = (
            Session(self.database, SESSION, on_open, self._notified),
            Session(self.database, {**SESSION, "lock_timeout": "1s"}),
            Session(self.database, {**SESSION, "lock_timeout": "1s"}),
            Session(self.database, SESSION),
        )
        limit = self.limits.max_connections
        self.session_permits = None if limit is None else ConnectionPermits.for_max_connections(limit)
        claims, writes, fan_outs, leases = self.sessions
        self.claims = Claims(claims, self.work.namespace, f"{socket.gethostname()}:{os.getpid()}")
        self.pool = Pool(self._start_child, self._ended, self._succeeded, self._came_back, lines)
        self.outcomes = Outcomes(
            writes,
            fan_outs,
            self.work.namespace,
            redactor(self.work.dsn),
            self._told,
            self.report.note_successes,
            self._written,
        )
        self.leases = Leases(leases, self.held, self._lose, self._unrenewed)

    def held(self) -> list[Attempt]:
        """Return all runs in this worker's hands."""
        return [*self.waiting, *(held for _, held in self.pool.holding()), *self.outcomes.held()]

    def in_hand(self) -> int:
        """Return how many runs are in this worker's hands."""
        return len(self.waiting) + len(self.outcomes) + self._in_children()

    def _in_children(self) -> int:
        return sum(len(child.assigned) for child in self.pool.children.values())

    def may_claim(self) -> bool:
        """Say whether this worker may take more upon itself."""
        limits = self.limits
        return (
            self.stop_at is None
            and (limits.max_seconds is None or clock.now() - self.begun < limits.max_seconds)
            and (limits.max_runs is None or self.claimed < limits.max_runs)
        )

    def _is_over(self) -> bool:
        is_away = self.database.away_since is not None
        if self._gives_up():
            left = (
                f"; its unfinished runs ({self.in_hand()}) are retried when their leases expire"
                if self.in_hand()
                else ""
            )
            raise EnvironmentFailed(f"the database was lost and did not return: {self.database.reason}{left}")
        if self.in_hand() or not self.claims.has_no_lost_claims or (self._is_claiming and not is_away):
            return False
        if not self.may_claim():
            if is_away and self.stop_at is None:
                raise EnvironmentFailed(f"the database was lost: {self.database.reason}")
            return True
        return self.claims.is_exhausted and self.claims.next_retry is None and not self.is_continuous

    def _gives_up(self) -> bool:
        """Say whether nothing is to be hoped from waiting for the database: every lease is over, or we are to stop."""
        away, now = self.database.away_since, clock.now()
        if away is None or self._in_children():
            return False
        if self.stopped_at is not None:
            return now - max(away, self.stopped_at) > LAST_WORDS
        if self.is_continuous or any(now < held.lease_ends for held in self.held() if not held.is_lost):
            return False
        return now - away > PATIENCE or not self.may_claim()

    async def _give_up(self, tasks: list[asyncio.Task[None]]) -> None:
        """Stop what is at work after a failure, and give back what can be given back."""
        self.stop_at = self.stopped_at = clock.now()
        self.pool.kill_all(STOPPED)
        self._give_back_waiting()
        patience = clock.now() + LAST_WORDS
        while self.in_hand() and clock.now() < patience and self.database.away_since is None:
            if any(task.done() for task in tasks):
                return
            self.pool.reap()
            await asyncio.sleep(0.01)

    def _give_back_waiting(self) -> None:
        for child in self.pool.children.values():
            self.waiting.extend(child.withdraw())
        while self.waiting:
            self._ended(self.waiting.popleft(), STOPPED, [])

    def reload(self, jobs: Mapping[str, Job], scope: Scope) -> None:
        """Work by a new file from now on. Children end when they are through; new ones import the handlers anew."""
        self.work = replace(self.work, jobs=jobs, scope=scope)
        self.pool.retire()
        self.claims.look_now()
        self.changed()

    def pause_claims(self, is_withheld: bool) -> None:
        """Claim nothing for now, or go on claiming. What is running is not stopped."""
        if self._is_withheld and not is_withheld:
            self.claims.look_now()
        self._is_withheld = is_withheld
        self.changed()

    def stop(self) -> None:
        """Stop claiming; handlers get the grace period. A second call is immediate."""
        if self.stop_at is None:
            self.stopped_at = clock.now()
            self.stop_at = self.stopped_at + self.limits.grace.total_seconds()
            log.info("worker.stopping", in_hand=self.in_hand(), grace=self.limits.grace)
            self._give_back_waiting()
        else:
            self.stop_at = clock.now()
            self.pool.kill_all(STOPPED)
        self.changed()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._changed.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def changed(self) -> None:
        """Note that something happened after which there may be something to do."""
        self._changed.set()
        self._may_claim.set()
        if self.waiting and not self._is_dispatching:
            self._is_dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatching = False
        self.permits.fill(min(self.concurrency, self.pool.busy() + len(self.waiting)))
        try:
            self.pool.dispatch(self.waiting, self.permits.held)
        except EnvironmentFailed:
            if not self.pool.busy():
                raise  # else one of the children at work will take it

    # -- claiming --------------------------------------------------------------------------------------------------

    async def _claim_on(self) -> None:
        """Claim whenever there is room for more."""
        while True:
            self._may_claim.clear()
            limit = self._room()
            if limit > 0 or not self.claims.has_no_lost_claims:
                self._is_claiming = True
                await self.claims.release_lost_claims()
                if limit > 0 and await self._can_keep_leases():
                    await self._claim(limit)
                self._is_claiming = False
                self._changed.set()
            if limit <= 0 or self.claims.is_exhausted:
                await self._pause()

    async def _can_keep_leases(self) -> bool:
        """Open the sessions that renew leases and write outcomes, before anything is claimed and children open theirs.

        The server may have a limit: a claim without them could neither be kept nor finished.
        """
        _, writes, _, leases = self.sessions
        try:
            await leases.open()
            await writes.open()
        except Unanswered:
            return False
        return True

    async def _pause(self) -> None:
        """Wait for news; a worker that is_continuous is woken by the server, or looks again by itself."""
        session = self.sessions[0]
        if self.is_continuous:
            session.watch()
        await wait(self._may_claim, POLL_INTERVAL_SECONDS)
        session.unwatch()
        self.claims.tick()

    def _notified(self, payloads: list[str]) -> None:
        if not payloads or self.work.namespace in payloads:
            self.claims.look_now()
            self._may_claim.set()

    def _room(self) -> int:
        """Return how many more runs can be begun soon; takes the host's slots for them."""
        if self.claims.is_exhausted or self._must_not_claim() or not self.outcomes.has_room():
            return 0
        held = self.permits.fill(self.concurrency)
        if held == 0:
            self.claims.set_exhausted()  # other ticks of this host have all the slots: they do what is due
            return 0
        soon, in_hand = self.pool.soon(held), len(self.waiting) + self._in_children()
        soon = min(soon, max(held, int(MAX_PAYLOAD_CHARS / max(1.0, self._usual_chars))))
        room = soon - in_hand
        if self.pool.busy() >= held and 2 * room < soon:
            return 0  # all have enough to do: claiming by the handful costs more than it brings
        return room if self.limits.max_runs is None else min(room, self.limits.max_runs - self.claimed)

    def _must_not_claim(self) -> bool:
        return self._is_withheld or not self.may_claim() or self.outcomes.is_behind()

    def _free_slots(self) -> None:
        """Leave to others of this host the slots that there is nothing for."""
        if self.claims.is_exhausted or not self.may_claim():
            self.permits.shrink(self.pool.busy() + len(self.waiting))

    async def _claim(self, limit: int) -> None:
        answer = await self.claims.claim(limit, self.work.scope, unless=self._must_not_claim)
        if answer is None:
            return
        claim, sent = answer
        self.claimed += len(claim.runs)
        self.report.note_claim(claim)
        if claim.dead:
            self.claims.look_now()  # for the runs that call their on_dead
        if claim.runs:
            chars = sum(len(run.payload) for run in claim.runs) / len(claim.runs)
            self._usual_chars = max(chars, (self._usual_chars + chars) / 2)
        for run in claim.runs:
            self._take(run, sent)
        self._has_work.set()
        self._free_slots()
        self.changed()
        await asyncio.sleep(0)  # what was claimed is handed out before the next claim is asked

    def _take(self, run: ClaimedRun, sent: float) -> None:
        job = self.work.jobs.get(run.job_type)
        held = Attempt(run, job or Job(name=run.job_type, handler=""), sent + run.lease, sent, None, sent)
        if self.stop_at is not None:
            self._ended(held, STOPPED, [])
        elif job is None:
            self._ended(held, NOT_OURS, [])
        elif run.key and run.is_on_dead_call and run.dead_run_id is None:
            self._ended(held, Ending(End.DISCARDED, f'key "{run.key}" is reserved, and names no dead run'), [])
        elif run.key and run.is_on_dead_call and job.on_dead is None:
            self._ended(held, Ending(End.DISCARDED, "on_dead was removed from schedules.yaml"), [])
        else:
            self.waiting.append(held)

    # -- children --------------------------------------------------------------------------------------------------

    def _start_child(self, parent: int, commands: int, results: int, output: int, memory: Memory) -> None:
        work = self.work
        bootstrap.run(
            parent,
            commands,
            results,
            output,
            memory,
            work.dsn,
            work.namespace,
            work.search_path(),
            self.zone,
            self.session_permits,
        )

    def _reap(self) -> None:
        self.pool.reap()
        self.changed()

    def _ended(self, held: Attempt, ending: Ending, enqueued: list[Any]) -> None:
        self.outcomes.add(held, ending, enqueued)
        self.changed()

    def _succeeded(self, ends: list[Success]) -> None:
        self.outcomes.add_successes(ends)
        self.changed()

    def _came_back(self, runs: Iterable[Attempt]) -> None:
        """Runs that were handed out and not begun: no attempt is spent, another child begins them."""
        again = []
        for held in runs:
            held.started_at, held.waits_since = None, clock.now()
            if self.stop_at is not None or held.is_lost:
                self._ended(held, STOPPED, [])
            else:
                again.append(held)
        self.waiting.extendleft(reversed(again))
        self.changed()

    async def _watch(self) -> None:
        while True:
            if self.in_hand() or not self.is_continuous:
                await asyncio.sleep(LOOK_EVERY)
            else:
                await wait(self._has_work, POLL_INTERVAL_SECONDS)
            now = clock.now()
            self.pool.watch()
            at_work = self.pool.holding()
            self.leases.look([*self.waiting, *(held for _, held in at_work)])
            self.claims.tick()
            if self.stop_at is not None and now >= self.stop_at:
                for child, held in at_work:
                    if child.current() is held:
                        self.pool.stop(child, held, STOPPED)
            if self.waiting and self.pool.soon(self.permits.held) == 0:
                for held in [held for held in self.waiting if now - held.waits_since > GIVE_BACK_AFTER]:
                    self.waiting.remove(held)
                    self._ended(held, NOT_STARTED, [])
            self._free_slots()
            if self.is_continuous:
                self.pool.retire(idle_for=IDLE_CHILDREN)
            self.changed()

    # -- leases ----------------------------------------------------------------------------------------------------

    def _lose(self, held: Attempt, why: str) -> None:
        """Stop a run that is ours no longer; whatever comes of it is discarded."""
        if lose(held, why):
            self._take_away(held, LOST, grace=0.5)

    def _unrenewed(self, held: Attempt) -> None:
        """Stop a run before its lease ends. What becomes of it is written if the database comes back in time."""
        if held.stopped is None:
            log.warning("lease.unrenewed", job=held.run.job_type, run=held.run.id, key=held.run.key)
        self._take_away(held, UNRENEWED, grace=max(0.0, held.lease_ends - clock.now() - LOOK_EVERY))

    def _take_away(self, held: Attempt, ending: Ending, grace: float) -> None:
        for child, other in self.pool.holding():
            if other is held:
                self.pool.stop(child, held, ending, grace)
        if held in self.waiting:
            self.waiting.remove(held)
            self._ended(held, ending, [])

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _written(self) -> None:
        self.claims.look_now()  # what was written may let other runs be due
        self.changed()

    def _told(self, item: Item, run_at: datetime | None) -> None:
        outcome = item.outcome
        self.report.note_end(item.held.run, item.ending, outcome, run_at)
        if outcome.status is Status.FAILED and outcome.delay is not None:
            self.claims.retry_in(outcome.delay.total_seconds())


@contextlib.contextmanager
def less_garbage_collection() -> Iterator[None]:
    """Let Python look for cycles less often: what a worker makes in great numbers has none.

    What there is already is never looked at, which also leaves its pages shared with the children.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for ``event``, or for so many seconds, whichever is sooner."""
    alarm = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        alarm.cancel()
    event.clear()
