"""Claims: when to look for due runs, how many to claim, and what to do when the answer is lost."""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets

import psycopg

from yamlsched import log
from yamlsched.store import runs as store
from yamlsched.store.connection import reason
from yamlsched.worker import clock
from yamlsched.worker.sessions import Connection, Session, Unanswered

TIMEOUT_SECONDS = 20.0
POLL_INTERVAL_SECONDS = 1.0  # after which a worker that found nothing due looks again
LOST_CLAIM_SECONDS = 3.0  # for which a claim whose answer was lost may still be on its way to the server
MAX_RUNS = 10_000  # in one claim
ERROR_PAUSE_SECONDS = 0.1  # after the server gave up on a lock or a statement
MAX_RETRY_WAIT_SECONDS = 10.0  # for which a worker stays to retry what failed here


class Claims:
    """Claims runs for one worker, whose tokens begin with ``name``.

    The first claim asks for all kinds of runs, as a short-lived worker may have no second one. Later claims take the
    fast path, which asks only for runs that may execute side by side. They ask for all kinds when the fast path runs
    short and at least once a second, or every other time while some runs had lost their worker; but never twice in a
    row.
    """

    def __init__(self, session: Session, namespace: str, name: str) -> None:
        self._session, self._namespace, self._name = session, namespace, name
        self.is_exhausted = False  # the last claim found less than it asked for, and nothing has changed since
        self._poll_at = 0.0  # when an exhausted worker looks again
        self._changes = 0  # calls of `look_now`: a change during a claim came too late for it
        self._limit = MAX_RUNS  # lower for a while when the server gives up on long statements
        self._after = 0
        self._past = store.BEFORE_ALL
        self._is_fast = False  # the next claim takes the fast path
        self._was_fast = True
        self._complete_at = 0.0  # when all kinds of runs are asked for again
        self._retries: list[float] = []  # when attempts that failed here are due again
        self._lost: dict[str, float] = {}  # tokens of claims whose answer was lost; until when they are asked for

    def set_exhausted(self) -> None:
        """Note that nothing can be claimed until the next poll."""
        self.is_exhausted, self._poll_at = True, clock.now() + POLL_INTERVAL_SECONDS

    def look_now(self) -> None:
        """Note that something may be due."""
        self.is_exhausted = False
        self._changes += 1

    def retry_in(self, seconds: float) -> None:
        """Note that a run that failed here is due again in ``seconds``."""
        if seconds < MAX_RETRY_WAIT_SECONDS:
            heapq.heappush(self._retries, clock.now() + seconds)

    @property
    def awaits_retry(self) -> bool:
        """Whether a run that failed here is due again soon."""
        return bool(self._retries)

    def check_clock(self) -> None:
        """Have due runs looked for if it is time to."""
        now = clock.now()
        if self.is_exhausted and now >= self._poll_at:
            self.is_exhausted = False
        while self._retries and self._retries[0] <= now:
            heapq.heappop(self._retries)
            self.is_exhausted = False

    @property
    def has_lost_claims(self) -> bool:
        """Whether the answer to a claim is unknown."""
        return bool(self._lost)

    async def release_lost_claims(self) -> None:
        """Release, at no cost, what was claimed by claims whose answers were lost: nothing of it was started.

        Such a claim may reach the server late, so it is asked for again for some seconds.
        """
        for token in list(self._lost):

            async def release(connection: Connection, token: str = token) -> int:
                return await store.release_claim(connection, self._namespace, token)

            try:
                found = await self._session.run(release, TIMEOUT_SECONDS)
            except (Unanswered, psycopg.OperationalError):
                return
            self._lost[token] = until = self._lost[token] or clock.now() + LOST_CLAIM_SECONDS
            if found or clock.now() > until:
                del self._lost[token]

    async def claim(self, limit: int, scope: store.Scope) -> tuple[store.ClaimResult, float] | None:
        """Claim up to ``limit`` runs. Return them with the instant before the claim was sent; None without an answer.

        ``is_exhausted`` says afterwards whether more may be due.
        """
        limit, changes = min(limit, self._limit), self._changes
        is_fast = self._is_fast and not (self._was_fast and clock.now() >= self._complete_at)
        token, sent_at = f"{self._name}:{secrets.token_hex(6)}", clock.now()

        async def ask(connection: Connection) -> store.ClaimResult:
            if is_fast:
                return await store.claim_waiting(connection, self._namespace, token, limit, scope, self._past)
            return await store.claim(connection, self._namespace, token, limit, scope, self._after)

        try:
            claim = await self._session.run(ask, TIMEOUT_SECONDS)
        except Unanswered as error:
            if error.was_asked:
                self._lost[token] = 0.0
            return None
        except psycopg.errors.UniqueViolation:
            return None  # another worker has claimed a run of the same exclusive job
        except psycopg.OperationalError as error:
            log.warning("database.failed", error=reason(error))
            self._limit = max(1, limit // 2)
            await asyncio.sleep(ERROR_PAUSE_SECONDS)
            return None
        self._limit = max(limit, min(2 * self._limit, MAX_RUNS))
        self._was_fast = is_fast
        self._is_fast = not claim.is_truncated if not is_fast else len(claim.runs) == limit
        self._past = claim.past if is_fast and self._is_fast else store.BEFORE_ALL
        if is_fast:
            return claim, sent_at
        # where runs had lost their worker, more of them may be due: only a claim of all kinds takes them
        self._complete_at = clock.now() + (0.0 if claim.lost else POLL_INTERVAL_SECONDS)
        is_complete, self._after = claim.after == 0 and self._after == 0, claim.after
        if claim.is_contended:
            self._after = random.randrange(scope.newest + 1)  # workers that start at the same job hinder each other
        if len(claim.runs) + len(claim.dead) < limit and is_complete and changes == self._changes:
            self.set_exhausted()
        return claim, sent_at
