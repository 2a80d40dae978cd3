"""The parent: claims, keeps leases, hands runs to children, writes outcomes.

It is one thread around one event loop, because it forks. Four things go on at once: claiming and handing out
(``drain``), writing outcomes (``_write``), renewing leases (``_renew``), and watching the children (``_watch``).
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import secrets
import signal
import socket
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from yamlsched import log
from yamlsched.definitions.job import Job
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs import Claimed, End, Ending, Outcome, Status, after_attempt
from yamlsched.store import runs as store
from yamlsched.worker import clock, forked
from yamlsched.worker.host_slots import HostSlots
from yamlsched.worker.pool import Held, Pool
from yamlsched.worker.sessions import Session
from yamlsched.worker.wire import Memory

LOOK_AGAIN = 1.0  # seconds after which a worker that found nothing due looks again, while it has others in hand
WATCH_EVERY = 0.1  # seconds
WRITE_AT_ONCE = 1_000  # outcomes in one statement
LINGER = 10.0  # seconds for which a worker stays for retries of what failed in its own hands
MARGIN = 0.15  # of the lease: a handler whose lease cannot be renewed is stopped before it ends
CONFLICTS = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError)
STOPPED = Ending(End.GIVEN_BACK, "stopped by a shutdown")
LOST = Ending(End.GIVEN_BACK, "its lease was lost")


@dataclass(frozen=True)
class Limits:
    """How much a worker takes upon itself; None: without a limit."""

    max_seconds: float | None = None  # after which it claims no more
    max_runs: int | None = None
    grace: timedelta = timedelta(seconds=30)  # for handlers, after SIGTERM


@dataclass(frozen=True)
class Work:
    """What a worker may claim, and how it is carried out. ``definitions``: ids of the jobs, None for all."""

    dsn: str
    namespace: str
    jobs: Mapping[str, Job]
    definitions: list[int] | None
    path: tuple[str, ...]  # comes first on sys.path in the children


@dataclass
class Worker:
    """See the module. ``tally`` counts what became of the attempts, by state of the run."""

    work: Work
    slots: HostSlots
    concurrency: int
    limits: Limits = Limits()
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.waiting: deque[Held] = deque()  # claimed, and in no child's hands
        self.outcomes: deque[tuple[Held, Ending, list[Any]]] = deque()
        self.writing: list[Held] = []
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.is_dry = False  # the last claim found less than it asked for, and nothing has changed since
        self.look_at = 0.0  # when a dry worker looks again
        self.after = 0
        self.claimed = 0
        self.stop_at: float | None = None  # handlers are stopped then
        self.retries: list[float] = []  # when attempts that failed here are due again, as far as we stay for them
        self.failure: EnvironmentFailed | None = None
        self.unanswered: list[str] = []  # tokens of claims whose answer was lost

    # -- the life of a worker --------------------------------------------------------------------------------------

    async def drain(self) -> Counter[str]:
        """Work until nothing is due (any more), and return the tally."""
        loop = asyncio.get_running_loop()
        self.wake, self.has_outcomes = asyncio.Event(), asyncio.Event()
        self.claims, self.writes = Session(self.work.dsn), Session(self.work.dsn)
        self.pool = Pool(self._start_child, self._ended, self._came_back)
        self.begun = clock.now()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        tasks = [asyncio.create_task(part()) for part in (self._write, self._renew, self._watch)]
        for task in tasks:
            task.add_done_callback(lambda _: self.wake.set())
        try:
            while not await self._is_over():
                for task in tasks:
                    if task.done():
                        task.result()
                if self.failure is not None:
                    raise self.failure
                await self._claim()
                self.pool.dispatch(self.waiting, self.slots.held)
                if self._should_wait():
                    await self._wait()
            return self.tally
        finally:
            for task in tasks:
                task.cancel()
            self.pool.retire()
            for child in self.pool.children.values():
                if child.assigned:
                    self.pool.kill_all()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                loop.remove_signal_handler(number)
            await self.claims.drop()
            await self.writes.drop()
            self.slots.shrink(0)

    def in_hand(self) -> int:
        """How many runs this worker holds in whatever state."""
        return (
            len(self.waiting)
            + len(self.outcomes)
            + len(self.writing)
            + sum(len(child.assigned) for child in self.pool.children.values())
        )

    def may_claim(self) -> bool:
        limits = self.limits
        return (
            self.stop_at is None
            and (limits.max_seconds is None or clock.now() - self.begun < limits.max_seconds)
            and (limits.max_runs is None or self.claimed < limits.max_runs)
        )

    async def _is_over(self) -> bool:
        if self.in_hand() or (self.may_claim() and not self.is_dry):
            return False
        if self.may_claim() and self.retries:
            await self._wait_until(heapq.heappop(self.retries))
            self.is_dry = False
            return False
        return True

    async def _wait_until(self, instant: float) -> None:
        while (left := instant - clock.now()) > 0 and self.may_claim():
            await asyncio.sleep(min(left, WATCH_EVERY))

    def _should_wait(self) -> bool:
        return bool(self.in_hand()) and (self.is_dry or not self.may_claim() or self._room() <= 0)

    async def _wait(self) -> None:
        await self.wake.wait()
        self.wake.clear()
        if clock.now() >= self.look_at:
            self.is_dry = False

    def stop(self) -> None:
        """Stop claiming; handlers get the grace period. A second call is immediate."""
        if self.stop_at is None:
            self.stop_at = clock.now() + self.limits.grace.total_seconds()
            log.info("worker.stopping", in_hand=self.in_hand(), grace=self.limits.grace)
        else:
            self.stop_at = clock.now()
            for _, _, held in self.pool.holding():
                held.stopped = held.stopped or STOPPED
            self.pool.kill_all()
        self._give_back_waiting()
        self.wake.set()

    def _give_back_waiting(self) -> None:
        for child in self.pool.children.values():
            self.waiting.extend(self.pool.take_back(child))
        while self.waiting:
            self._ended(self.waiting.popleft(), STOPPED, [])

    # -- claiming --------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """How many more runs can be begun soon."""
        held = len(self.waiting) + sum(len(child.assigned) for child in self.pool.children.values())
        room = self.pool.soon(max(1, self.slots.held)) - held
        is_idle = len(self.pool.children) < self.slots.held or any(not c.assigned for c in self.pool.children.values())
        return room if is_idle or 2 * room >= self.pool.soon(max(1, self.slots.held)) else 0

    async def _claim(self) -> None:
        if not self.may_claim() or self.is_dry:
            return
        if self.slots.fill(self.concurrency) == 0:
            self.is_dry, self.look_at = (
                True,
                clock.now() + LOOK_AGAIN,
            )  # other ticks of this host have all the slots: they do what is due
            return
        limit = self._room()
        if self.limits.max_runs is not None:
            limit = min(limit, self.limits.max_runs - self.claimed)
        if limit <= 0:
            return
        token, sent = f"{self.name}:{secrets.token_hex(6)}", clock.now()
        connection = await self.claims.get()
        try:
            while self.unanswered:
                await store.give_back_claim(connection, self.work.namespace, self.unanswered[-1])
                self.unanswered.pop()
            claim = await store.claim(connection, self.work.namespace, token, limit, self.work.definitions, self.after)
        except CONFLICTS:
            return  # another worker made the same job's run its own: look again
        except TROUBLE as error:
            self.unanswered.append(token)
            await self._trouble(self.claims, error)
            return
        walk_ended, self.after = claim.after == 0 and self.after == 0, claim.after
        self.is_dry = len(claim.runs) < limit and walk_ended
        self.claimed += len(claim.runs)
        for lost in claim.lost:
            log.warning("attempt.lost", run=lost.id, attempt=lost.attempt, worker=lost.worker)
        for dead in claim.dead:
            self.tally[Status.DEAD] += 1
            log.error(
                "run.dead", job=dead.job_type, run=dead.id, key=dead.key,
                attempt=f"{dead.attempt}/{dead.max_attempts}", error="lost its worker",
            )  # fmt: skip
        for run in claim.runs:
            job = self.work.jobs.get(run.job_type)
            if job is None:
                unknown = Job(name=run.job_type, handler="")
                self._ended(Held(run, unknown, sent, sent), STOPPED, [])
                continue
            held = Held(run, job, lease_ends=sent + run.lease, renewed=sent)
            log.debug("run.claimed", job=run.job_type, run=run.id, key=run.key, attempt=_of(run))
            if run.dead_run_id is not None and job.on_dead is None:
                self._ended(held, Ending(End.DISCARDED, "the file names no on_dead for this job any more"), [])
            else:
                self.waiting.append(held)
        if self.is_dry:
            self.look_at = clock.now() + LOOK_AGAIN
            busy = sum(1 for child in self.pool.children.values() if child.assigned)
            self.slots.shrink(busy + len(self.waiting))

    # -- children --------------------------------------------------------------------------------------------------

    def _start_child(self, commands: int, results: int, output: int, memory: Memory) -> None:
        sockets = [s for s in (self.claims.socket, self.writes.socket) if s is not None]
        self.slots.close_in_child()
        forked.run(commands, results, output, memory, sockets, self.work)

    def _reap(self) -> None:
        try:
            self.pool.reap()
        except EnvironmentFailed as error:
            self.failure = error
        self.wake.set()

    def _ended(self, held: Held, ending: Ending, enqueued: list[Any]) -> None:
        self.outcomes.append((held, ending, enqueued))
        self.has_outcomes.set()
        self.wake.set()

    def _came_back(self, runs: Iterable[Held]) -> None:
        """Runs that were handed out and not begun: no attempt is spent, another child begins them."""
        for held in runs:
            held.begun = None
            if self.stop_at is not None or held.is_lost:
                self._ended(held, STOPPED, [])
            else:
                self.waiting.appendleft(held)
        self.wake.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY)
            self.pool.watch()
            self.wake.set()
            now = clock.now()
            if self.stop_at is not None and now >= self.stop_at:
                for child, _, held in self.pool.holding():
                    if child.current() is held:
                        self.pool.kill(child, held, STOPPED)
            for held in [*self.waiting, *(held for _, _, held in self.pool.holding())]:
                if now > held.lease_ends - MARGIN * held.run.lease and not held.is_lost:
                    self._lose(held, "could not be renewed in time")

    # -- leases ----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY)
            sent = clock.now()
            everything = [*self.waiting, *(held for _, _, held in self.pool.holding())]
            due = {h.run.id: h for h in everything if sent - h.renewed >= h.run.lease / 4 and not h.is_lost}
            if not due:
                continue
            connection = await self.claims.get()
            try:
                renewed = await store.heartbeat(connection, [held.run for held in due.values()])
                others = [held for held in due.values() if held.run.id not in renewed]
                fates = await store.fates(connection, [held.run for held in others]) if others else {}
            except TROUBLE as error:
                await self._trouble(self.claims, error)
                continue
            for run_id in renewed:
                due[run_id].renewed, due[run_id].lease_ends = sent, sent + due[run_id].run.lease
            for held in others:
                if fates[held.run.id] in ("lost", Status.CANCELLED):
                    self._lose(held, fates[held.run.id])
                # else it is being finished, or has been: its outcome is on its way

    def _lose(self, held: Held, why: str) -> None:
        """Stop a run that is ours no longer; whatever comes of it is discarded."""
        held.is_lost = True
        run = held.run
        log.warning("lease.lost", job=run.job_type, run=run.id, key=run.key, attempt=_of(run), why=why)
        if held in self.waiting:
            self.waiting.remove(held)
        for child, index, other in self.pool.holding():
            if other is held:
                if child.memory.take_back(index):
                    del child.assigned[index]
                else:
                    self.pool.kill(child, held, LOST)

    async def _trouble(self, session: Session, error: psycopg.Error) -> None:
        log.warning("database.failed", error=" ".join(str(error).split())[:300])
        await session.drop()
        await asyncio.sleep(WATCH_EVERY)

    # -- outcomes --------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self.has_outcomes.wait()
            self.has_outcomes.clear()
            while self.outcomes:
                batch = [self.outcomes.popleft() for _ in range(min(len(self.outcomes), WRITE_AT_ONCE))]
                self.writing = [held for held, _, _ in batch]
                await self._write_batch(batch)
                self.writing = []
                self.is_dry = False  # what was written may let other runs be due
                self.wake.set()

    async def _write_batch(self, batch: list[tuple[Held, Ending, list[Any]]]) -> None:
        together: list[tuple[Held, Ending, Outcome]] = []
        for held, ending, enqueued in batch:
            if held.is_lost:
                continue  # said already
            if ending.end is End.COMMITTED:
                self._tell(held, ending, Outcome(Status.SUCCEEDED), None)
                continue
            outcome = after_attempt(held.run, ending, held.job.backoff, random.random())
            if enqueued:
                await self._write_with_fan_out(held, ending, outcome, enqueued)
            else:
                together.append((held, ending, outcome))
        while together:
            connection = await self.writes.get()
            try:
                written = await store.finish(connection, [(held.run, outcome) for held, _, outcome in together])
                together = await self._settle_unwritten(connection, together, written)
            except TROUBLE as error:
                await self._trouble(self.writes, error)
                together = [item for item in together if not item[0].is_lost]

    async def _settle_unwritten(
        self,
        connection: psycopg.AsyncConnection[Any],
        items: list[tuple[Held, Ending, Outcome]],
        written: dict[int, Any],
    ) -> list[tuple[Held, Ending, Outcome]]:
        """Tell what was written; find out about the rest. Returns what is to be written again."""
        rest = []
        for item in items:
            if item[0].run.id in written:
                self._tell(*item, written[item[0].run.id])
            else:
                rest.append(item)
        if not rest:
            return []
        fates = await store.fates(connection, [held.run for held, _, _ in rest])
        again = []
        for held, ending, outcome in rest:
            fate = fates[held.run.id]
            if fate == "ours":
                again.append((held, ending, outcome))
            elif fate == Status.SUCCEEDED and outcome.status is not Status.SUCCEEDED:
                # its own transaction had committed before the end that we heard of
                self._tell(held, ending, Outcome(Status.SUCCEEDED), None)
            elif fate == outcome.status:
                self._tell(held, ending, outcome, None)  # written before, by a commit whose answer was lost
            else:
                run = held.run
                log.warning("lease.lost", job=run.job_type, run=run.id, key=run.key, attempt=_of(run), why=fate)
        return again

    async def _write_with_fan_out(self, held: Held, ending: Ending, outcome: Outcome, enqueued: list[Any]) -> None:
        while not held.is_lost:
            connection = await self.writes.get()
            try:
                written = await store.finish_with(connection, self.work.namespace, held.run, outcome, enqueued)
                if not await self._settle_unwritten(connection, [(held, ending, outcome)], written):
                    return
            except TROUBLE as error:
                await self._trouble(self.writes, error)
            except psycopg.DatabaseError as error:
                # what it wants to enqueue is refused: that is the handler's failure
                reason = error.diag.message_primary or str(error)
                self._ended(held, Ending(End.RAISED, reason, "EnqueueRefused", took=ending.took), [])
                return

    def _tell(self, held: Held, ending: Ending, outcome: Outcome, run_at: Any) -> None:
        """Count and log an outcome that stands in the database."""
        run = held.run
        self.tally[outcome.status] += 1
        common = {"job": run.job_type, "run": run.id, "key": run.key, "attempt": _of(run)}
        match outcome.status:
            case Status.SUCCEEDED:
                log.info("attempt.succeeded", **common, took=timedelta(seconds=round(ending.took, 2)))
            case Status.FAILED:
                log.warning("attempt.failed", **common, next=run_at, error=outcome.error)
                wait = outcome.delay.total_seconds() if outcome.delay is not None else LINGER
                if wait < LINGER:
                    heapq.heappush(self.retries, clock.now() + wait)
            case Status.DEAD:
                log.error("run.dead", **common, error=outcome.error)
            case _ if ending.end is End.SNOOZED:
                log.info("attempt.snoozed", **common, next=run_at)
            case _:
                log.info("run.given_back", **common, why=ending.error)


def _of(run: Claimed) -> str:
    return f"{run.attempt}/{run.max_attempts}"
