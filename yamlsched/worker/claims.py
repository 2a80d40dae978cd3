"""Claiming: when to look for due runs, for how many, and what is done when the answer is lost."""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
from collections.abc import Callable

import psycopg

from yamlsched import log
from yamlsched.store import runs as store
from yamlsched.store.connection import reason
from yamlsched.worker import clock
from yamlsched.worker.sessions import Connection, Session, Unanswered

WITHIN = 20.0  # seconds
POLL_INTERVAL_SECONDS = 1.0  # seconds after which a worker that found nothing due looks again
ASK_FOR = 3.0  # seconds for which a claim whose answer was lost may still be on its way to the server
MOST = 10_000  # runs in one claim
PAUSE = 0.1  # seconds, after the server refused to wait for a lock or for a statement
LINGER = 10.0  # seconds for which a worker stays for retries of what failed in its own hands


class Claims:
    """Claims runs for one worker, whose tokens begin with ``name``."""

    def __init__(self, session: Session, namespace: str, name: str) -> None:
        self._session, self._namespace, self._name = session, namespace, name
        self.is_exhausted = False  # the last claim found less than it asked for, and nothing has changed since
        self._news = 0  # what was heard during a claim came too late for it
        self.look_at = 0.0  # when a dry worker looks again
        self._most = MOST  # less for a while when the server gives up on long statements
        self._after = 0
        self._past = store.BEFORE_ALL
        # The first claim asks for all kinds of runs, as a short-lived worker may have no second one. Then claims ask
        # for the usual kind until that runs short, and for all kinds once a second, or every other time while some runs
        # had lost their worker; but never twice in a row.
        self._is_usual = False
        self._was_usual = True
        self._complete_at = 0.0
        self._retries: list[float] = []  # when attempts that failed here are due again, as far as we stay for them
        self._unanswered: dict[str, float] = {}  # tokens of claims whose answer was lost; until when they are asked for

    def set_exhausted(self, for_: float = POLL_INTERVAL_SECONDS) -> None:
        """Note that nothing is to be had for a while."""
        self.is_exhausted, self.look_at = True, clock.now() + for_

    def look_now(self) -> None:
        """Note that something may be due."""
        self.is_exhausted = False
        self._news += 1

    def retry_in(self, seconds: float) -> None:
        """Note that a run that failed here is due again so soon."""
        if seconds < LINGER:
            heapq.heappush(self._retries, clock.now() + seconds)

    @property
    def next_retry(self) -> float | None:
        """When a run that failed here is due again."""
        return self._retries[0] if self._retries else None

    def tick(self) -> None:
        """Let what is due by the clock be looked for."""
        now = clock.now()
        if self.is_exhausted and now >= self.look_at:
            self.is_exhausted = False
        while self._retries and self._retries[0] <= now:
            heapq.heappop(self._retries)
            self.is_exhausted = False

    @property
    def has_no_lost_claims(self) -> bool:
        """Whether every claim's answer is known."""
        return not self._unanswered

    async def release_lost_claims(self) -> None:
        """Give back, at no cost, what claims took whose answers were lost: nothing of it was begun.

        Such a claim may reach the server late: it is asked for again for some seconds.
        """
        for token in list(self._unanswered):

            async def give_back(connection: Connection, token: str = token) -> int:
                return await store.release_claim(connection, self._namespace, token)

            try:
                found = await self._session.run(give_back, WITHIN)
            except (Unanswered, psycopg.OperationalError):
                return
            self._unanswered[token] = until = self._unanswered[token] or clock.now() + ASK_FOR
            if found or clock.now() > until:
                del self._unanswered[token]

    async def claim(
        self, limit: int, scope: store.Scope, unless: Callable[[], bool]
    ) -> tuple[store.ClaimResult, float] | None:
        """Claim up to ``limit`` runs; return them with the instant before that was sent, None without an answer.

        Nothing is asked if ``unless`` says so when the session is there, which may have taken long.
        ``is_exhausted`` says afterwards whether more may be due.
        """
        limit, news = min(limit, self._most), self._news
        is_usual = self._is_usual and not (self._was_usual and clock.now() >= self._complete_at)
        token, sent = f"{self._name}:{secrets.token_hex(6)}", 0.0

        async def ask(connection: Connection) -> store.ClaimResult | None:
            nonlocal sent
            if unless():
                return None
            sent = clock.now()
            if is_usual:
                return await store.claim_waiting(connection, self._namespace, token, limit, scope, self._past)
            return await store.claim(connection, self._namespace, token, limit, scope, self._after)

        try:
            claim = await self._session.run(ask, WITHIN)
        except Unanswered as error:
            if error.was_asked:
                self._unanswered[token] = 0.0
            return None
        except psycopg.errors.UniqueViolation:
            return None  # another worker made the same job's run its own
        except psycopg.OperationalError as error:
            log.warning("database.failed", error=reason(error))
            self._most = max(1, limit // 2)
            await asyncio.sleep(PAUSE)
            return None
        if claim is None:
            return None
        self._most = max(limit, min(2 * self._most, MOST))
        self._was_usual = is_usual
        self._is_usual = not claim.is_truncated if not is_usual else len(claim.runs) == limit  # else what is due beside
        self._past = claim.past if is_usual and self._is_usual else store.BEFORE_ALL
        if is_usual:
            return claim, sent
        # where runs had lost their worker, more of them may be due: only such a claim takes them
        self._complete_at = clock.now() + (0.0 if claim.lost else POLL_INTERVAL_SECONDS)
        walk_ended, self._after = claim.after == 0 and self._after == 0, claim.after
        if claim.is_contended:
            self._after = random.randrange(scope.newest + 1)  # workers that walk together hinder each other
        if len(claim.runs) + len(claim.dead) < limit and walk_ended and news == self._news:
            self.set_exhausted()
        return claim, sent
