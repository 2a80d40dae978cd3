"""Claims: when to look for due runs, how many to claim, what to do when the answer is lost; and the
upkeep before.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import psycopg

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.db.query import AsyncConnection
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.runs.release import release_followers
from yamlsched.schedule.job import Queue
from yamlsched.worker import claiming, clock, statements
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.report import RunReport
from yamlsched.worker.sessions import Unanswered, WorkerSession

TIMEOUT_SECONDS = 20.0
POLL_INTERVAL_SECONDS = 1.0  # after which a worker that found nothing due looks again
LOOK_INTERVAL_SECONDS = 0.1  # after which a busy worker looks for what was created or let go since
# for which a claim whose answer was lost may still be on its way to the server
LOST_CLAIM_SECONDS = 3.0
MAX_RUNS = 10_000  # in one claim
MAX_BUSY_CLAIMS = 20  # in a row that found only jobs whose gates other sessions have
MAX_SWEEPS = 10  # of a worker that ends, while they offer room that nobody takes
ERROR_PAUSE_SECONDS = 0.1  # after the server cancelled a statement
UPKEEP_INTERVAL_SECONDS = 1.0
# after which all unfinished runs are looked at, and not only the first ones
COMPLETE_INTERVAL_SECONDS = 60.0
MAX_RETRY_WAIT_SECONDS = 10.0  # for which a worker keeps running to retry what failed here

Answer = TypeVar("Answer")


async def answer_of(
    session: WorkerSession, ask: Callable[[AsyncConnection], Awaitable[Answer]]
) -> Answer | None:
    """Return what the server answers to ``ask``; None if it gave up on it. Raises Unanswered."""
    try:
        return await session.run(ask, TIMEOUT_SECONDS)
    except psycopg.errors.UniqueViolation:
        return None  # another session has claimed a run of the same job without its gate
    except psycopg.OperationalError as error:
        log.warning("database.failed", error=reason(error))
        await asyncio.sleep(ERROR_PAUSE_SECONDS)
        return None


class Claims:
    """Claims the runs of one ``queue``, which has the ``rules`` of the file, for one worker, whose
    tokens begin with ``name``.

    A worker that ``polls`` is notified of what is created, and looks for everything once in each
    interval.
    """

    rules = Queue()

    def __init__(
        self, session: WorkerSession, namespace: str, name: str, queue: str, polls: bool = False
    ) -> None:
        self._session, self._namespace, self._name = session, namespace, name
        self.queue, self._polls = queue, polls
        # the last claim found less than it asked for, and nothing has changed since it was sent
        self.is_exhausted = self._has_changed = False
        self._looked_at = 0.0  # when it claimed last
        self.look_at = 0.0  # when it claims again, whatever changes
        self._busy: set[int] = set()  # jobs that the next claim steps over: their gates were taken
        self._busy_claims = 0
        self.retries: list[float] = []  # when attempts that failed here are due again
        # tokens of claims whose answer was lost; until when they are asked for
        self.lost: dict[str, float] = {}

    def poll_now(self) -> None:
        """Note that anything may be claimable: also for a claim that is on its way."""
        self.is_exhausted, self._has_changed = False, True

    def poll_soon(self) -> None:
        """Note that something may have become due.

        A worker that is notified of what is created need not look after each run.
        """
        if self._polls and clock.now() < self._looked_at + LOOK_INTERVAL_SECONDS:
            self.look_at = min(self.look_at, self._looked_at + LOOK_INTERVAL_SECONDS)
        else:
            self.poll_now()

    def retry_in(self, seconds: float) -> None:
        """Note that a run that failed here is due again in ``seconds``."""
        if seconds < MAX_RETRY_WAIT_SECONDS:
            heapq.heappush(self.retries, clock.now() + seconds)

    def note_outcome(self, outcome: Outcome, is_released: bool) -> None:
        """Note what an attempt has left: a run that is due again now, or soon. ``is_released``: it
        was not started.
        """
        if outcome.delay is None:
            if outcome.status is Status.QUEUED:
                self.poll_now()
        elif outcome.status is Status.FAILED or is_released:
            self.retry_in(outcome.delay.total_seconds())

    @property
    def idle_seconds(self) -> float:
        """Seconds for which a worker may wait that can claim nothing."""
        return max(0.0, self.look_at - clock.now()) if self.is_exhausted else POLL_INTERVAL_SECONDS

    def check_clock(self) -> None:
        """Have due runs looked for if it is time to."""
        now = clock.now()
        if now >= self.look_at:
            self.poll_now()
        while self.retries and self.retries[0] <= now:
            heapq.heappop(self.retries)
            self.poll_now()

    def lose(self, runs: Iterable[ClaimedRun]) -> None:
        """Have ``runs`` released, which were claimed and will not be started."""
        self.lost.update((run.locked_by, 0.0) for run in runs)

    async def release_lost_claims(self) -> None:
        """Release, at no cost, what was claimed by claims whose answers were lost: nothing of it
        was started.

        Such a claim may reach the server late, so it is asked for again for some seconds.
        """
        for token in list(self.lost):
            release = partial(claiming.release_claim, namespace=self._namespace, token=token)
            try:
                released = await self._session.run(release, TIMEOUT_SECONDS)
            except (Unanswered, psycopg.OperationalError):
                return
            self.lost[token] = until = self.lost[token] or clock.now() + LOST_CLAIM_SECONDS
            if released:
                self.poll_now()
            if released or clock.now() > until:
                del self.lost[token]

    async def claim(
        self, limit: int, scope: claiming.ClaimScope, skipped: Collection[int] = ()
    ) -> list[ClaimedRun]:
        """Claim up to ``limit`` runs, but none of the jobs ``skipped``.

        Afterwards ``is_exhausted`` is true if nothing more is due.
        """
        busy, self._busy, self._has_changed, chance = self._busy, set(), False, random.random()
        answer = await self._ask(
            claiming.claim,
            limit=min(limit, MAX_RUNS),
            scope=scope,
            queue=self.queue,
            busy={*busy, *skipped},
            chance=chance,
        )
        if answer is None:
            return []
        claimed, gated = answer
        if claimed.unreleased:
            await self._settle(claimed)
        if gated:
            # what was lost of this claim is not what the first statement has claimed
            is_complete = await self._ask(
                claiming.claim_gated,
                claimed=claimed,
                ids=gated,
                revision=scope.revision,
                chance=chance,
            )
            claimed.is_complete = bool(is_complete)
        self._looked_at = clock.now()
        self.look_at = self._looked_at + POLL_INTERVAL_SECONDS
        self.is_exhausted = claimed.is_complete and not busy and not self._has_changed
        self._step_over(claimed)
        return claimed.runs

    async def _settle(self, claimed: claiming.ClaimResult) -> None:
        """Decide about runs that are not released: the next claim takes those that are."""
        ask = partial(release_followers, namespace=self._namespace, jobs=claimed.unreleased)
        try:
            result = await answer_of(self._session, ask)
        except Unanswered:
            result = None
        claimed.busy |= result.busy.union(result.failed) if result else claimed.unreleased
        claimed.is_complete = False

    def _step_over(self, claimed: claiming.ClaimResult) -> None:
        """Leave jobs whose gates others have to a claim in a moment, after what is behind them."""
        self._busy_claims = 0 if claimed.runs else self._busy_claims + bool(claimed.busy)
        if claimed.busy and self._busy_claims < MAX_BUSY_CLAIMS:
            self._busy = claimed.busy
            self.retry_in(LOOK_INTERVAL_SECONDS)

    async def _ask(
        self, statement: Callable[..., Awaitable[Answer]], **values: Any
    ) -> Answer | None:
        """Return the answer to a ``statement`` that claims under a new token; None without one."""
        token = f"{self._name}:{secrets.token_hex(6)}"
        ask = partial(statement, namespace=self._namespace, token=token, **values)
        try:
            return await answer_of(self._session, ask)
        except Unanswered as error:
            if error.was_asked:
                self.lost[token] = 0.0
            return None


class Upkeep:
    """Reclaims runs and sweeps for one worker, which claims after it: what it finds may be
    claimable.

    Not the runs of ``attempts``, the set of all that the worker holds, which changes in between: it
    ends them itself.
    """

    def __init__(
        self,
        session: WorkerSession,
        namespace: str,
        report: RunReport,
        attempts: Collection[Attempt],
        is_continuous: bool = True,
    ) -> None:
        self._session, self._namespace = session, namespace
        self._report, self._attempts = report, attempts
        self.next_at = self._complete_at = 0.0  # 0: at once, and before the worker ends
        self._sweeps_left = 0 if is_continuous else MAX_SWEEPS
        self.has_offered = False  # it sweeps again before the worker ends

    async def run_if_due(self) -> bool:
        """Do it, unless it is too early. Return whether runs may have become claimable."""
        now = clock.now()
        sweeps_again = self.has_offered and not self._attempts
        if now < self.next_at and not sweeps_again:
            return False
        is_complete, held = now >= self._complete_at, [attempt.run.id for attempt in self._attempts]

        async def ask(connection: AsyncConnection) -> tuple[claiming.ReclaimResult, int, int]:
            reclaimed = await claiming.reclaim(connection, self._namespace, held, is_complete)
            if reclaimed.dead or is_complete:
                dead = None if is_complete else [run.id for run in reclaimed.dead]
                await statements.pause_dying(connection, self._namespace, dead)
            offered = await claiming.sweep(connection, self._namespace, at_once=sweeps_again)
            if not is_complete:
                return reclaimed, offered, 0
            repaired = await claiming.repair(connection, self._namespace)
            # slots that have become late, and what no claim has met
            followers = await release_followers(connection, self._namespace)
            for job, why in followers.failed.items():
                log.error("slot.blocked", job=job, error=why)
            return reclaimed, offered, repaired + followers.repaired

        try:
            answer = await answer_of(self._session, ask)
        except Unanswered:
            return False
        self.next_at = clock.now() + UPKEEP_INTERVAL_SECONDS
        if answer is None:
            return False
        if is_complete:
            self._complete_at = clock.now() + COMPLETE_INTERVAL_SECONDS
        reclaimed, offered, repaired = answer
        self.has_offered = offered > 0 and self._sweeps_left > 0
        self._sweeps_left -= self.has_offered
        self._report.note_reclaimed(reclaimed)
        if repaired:
            log.warning("runs.repaired", runs=repaired)
        return bool(reclaimed.lost or reclaimed.dead or offered or repaired)
