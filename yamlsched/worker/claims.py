"""Claims: when to look for due runs, how many to claim, and what to do when the answer is lost."""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.runs import statements
from yamlsched.runs.lifecycle import Priority
from yamlsched.worker import clock
from yamlsched.worker.sessions import Connection, Session, Unanswered

LOWER_SHARE = 1 / 8
"""Of the claimed runs, what each level with due runs below the highest one is owed, so that it never starves."""


@dataclass
class Level:
    """What a worker knows about the runs of one priority.

    The first claim asks for all kinds of runs, as a short-lived worker may have no second one; that of a continuous
    worker does not. Later claims take the fast path, which asks only for runs that may execute side by side. They ask
    for all kinds when the fast path runs short and at least once a second, or every other time while some runs had lost
    their worker; but never twice in a row.
    """

    priority: Priority
    owed: float = 0.0  # runs that may be claimed although a higher level has more
    is_exhausted: bool = False  # nothing is due, or the last claim found less than it asked for
    after: int = 0
    past: tuple[str, int] = statements.BEFORE_ALL  # where the last claim on the fast path stopped
    starts_over: bool = False  # a run was released, which may be before `past`
    is_fast: bool = False  # the next claim takes the fast path
    was_fast: bool = True
    complete_at: float = 0.0  # when all kinds of runs are asked for again
    had_runs: bool = False  # the last claim found some, or marked some dead
    is_blocked: bool = False  # the last claims found only runs that others had locked
    read_until: tuple[str, int] = statements.BEFORE_ALL  # many runs up to here may not be claimed; the others were


def reserve(levels: Sequence[Level], limit: int) -> list[tuple[Level, int]]:
    """Return each of ``levels``, the highest first, with how many of ``limit`` runs are reserved for those below it."""
    shares = [max(0, int(level.owed + limit * LOWER_SHARE)) for level in levels]
    return [(level, min(limit, sum(shares[nth + 1 :]))) for nth, level in enumerate(levels)]


TIMEOUT_SECONDS = 20.0
POLL_INTERVAL_SECONDS = 1.0  # after which a worker that found nothing due looks again
LOOK_INTERVAL_SECONDS = 0.1  # after which a busy worker looks for other levels when runs were created
LOST_CLAIM_SECONDS = 3.0  # for which a claim whose answer was lost may still be on its way to the server
MAX_RUNS = 10_000  # in one claim
MAX_RUNS_BESIDE_OTHERS = (
    200  # in one claim, where many due runs may not be claimed: it reads more of those if it asks for more
)
MAX_RUNS_OF_POLL = 4  # in one claim where the one before has found none of those that it may claim
ERROR_PAUSE_SECONDS = 0.1  # after the server cancelled a statement
MAX_RETRY_WAIT_SECONDS = 10.0  # for which a worker keeps running to retry what failed here
MAX_CLAIMS_OF_LEVEL = 3  # before lower levels: the fast path, the rest of a walk over jobs, and a whole walk

Answer = TypeVar("Answer")


class Claims:
    """Claims runs for one worker, whose tokens begin with ``name``; each statement claims runs of one priority.

    Higher levels come first, but each lower level with due runs gets its share: see ``reserve``.

    An idle worker that ``polls`` asks for all that is due once in each interval. In between it looks only for runs that
    became due since: what may not be claimed, however much that is, is not read again for each run that is executed.
    """

    def __init__(self, session: Session, namespace: str, name: str, polls: bool = False) -> None:
        self._session, self._namespace, self._name, self._polls = session, namespace, name, polls
        # by chance, so that lower levels also get their share where each worker claims one run and exits
        self._levels = [Level(priority, owed=random.random()) for priority in Priority]
        self._looked_at = 0.0  # when it looked at which levels runs are due
        self._look_at = 0.0  # when it looks again
        self._complete_at = 0.0  # from when it looks for all that is due, and not only for what became due since
        self._since = statements.BEFORE_ALL[0]  # the instant of the last look for all that is due
        self._changes = 0  # calls of `look_now` and others: a change during a claim came too late for it
        self._seen = -1  # changes before it looked
        self._is_notified = False  # runs were created since the last claim
        self._limit = MAX_RUNS  # lower for a while after the server cancelled a statement
        self._retries: list[float] = []  # when attempts that failed here are due again
        self._lost: dict[str, float] = {}  # tokens of claims whose answer was lost; until when they are asked for

    @property
    def is_exhausted(self) -> bool:
        """Whether the last claims found less than they asked for, and nothing has changed since."""
        return self._seen == self._changes and all(level.is_exhausted for level in self._levels)

    def set_exhausted(self) -> None:
        """Note that nothing can be claimed until the next poll."""
        for level in self._levels:
            level.is_exhausted = True
        self._seen, self._look_at = self._changes, clock.now() + POLL_INTERVAL_SECONDS
        self._complete_at = 0.0

    def look_now(self) -> None:
        """Note that anything may be claimable."""
        self._changes += 1
        self._complete_at = 0.0

    def look_for_new(self) -> None:
        """Note that something may have become due.

        What was created since is notified too, so that a busy worker need not look after each run.
        """
        if self._looks_later():
            self._look_at = min(self._look_at, self._looked_at + LOOK_INTERVAL_SECONDS)
        else:
            self._changes += 1

    def _looks_later(self) -> bool:
        """Return whether a worker that is notified of what is created has looked so shortly before that it can wait."""
        return self._polls and clock.now() < self._looked_at + LOOK_INTERVAL_SECONDS

    def look_soon(self) -> None:
        """Note that runs of any level may have been created: a busy worker must not wait for the next poll."""
        self._changes += 1
        self._is_notified = True
        self._look_at = min(self._look_at, self._looked_at + LOOK_INTERVAL_SECONDS)

    def note_released(self) -> None:
        """Note that a run that was claimed here waits again: it comes before what has not been claimed yet."""
        self.look_now()
        for level in self._levels:
            level.starts_over = True

    def retry_in(self, seconds: float) -> None:
        """Note that a run that failed here is due again in ``seconds``."""
        if seconds < MAX_RETRY_WAIT_SECONDS:
            heapq.heappush(self._retries, clock.now() + seconds)

    @property
    def awaits_retry(self) -> bool:
        """Whether a run that failed here is due again soon."""
        return bool(self._retries)

    @property
    def idle_seconds(self) -> float:
        """Seconds for which a worker may wait that can claim nothing."""
        return max(0.0, self._look_at - clock.now()) if self.is_exhausted else POLL_INTERVAL_SECONDS

    def check_clock(self) -> None:
        """Have due runs looked for if it is time to."""
        now = clock.now()
        if now >= self._look_at:
            self._changes += 1
        while self._retries and self._retries[0] <= now:
            heapq.heappop(self._retries)
            self._changes += 1

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
                return await statements.release_claim(connection, self._namespace, token)

            try:
                found = await self._session.run(release, TIMEOUT_SECONDS)
            except (Unanswered, psycopg.OperationalError):
                return
            self._lost[token] = until = self._lost[token] or clock.now() + LOST_CLAIM_SECONDS
            if found:
                self.note_released()
            if found or clock.now() > until:
                del self._lost[token]

    async def claim(self, limit: int, scope: statements.Scope) -> tuple[statements.ClaimResult, float] | None:
        """Claim up to ``limit`` runs. Return them with the instant before the claim was sent; None without an answer.

        Afterwards ``is_exhausted`` is true if nothing more is due.
        """
        has_none = all(level.is_exhausted for level in self._levels)
        was_notified, self._is_notified = self._is_notified, False
        if has_none and was_notified:
            sent_at = clock.now()
            woken = await self._claim_highest(min(limit, self._limit), scope)
            if woken is None or woken.runs:
                return None if woken is None else (woken, sent_at)
            self._complete_at = 0.0  # it was notified of something else
        if (has_none or clock.now() >= self._look_at) and not await self._look(has_none):
            return None
        levels = [level for level in self._levels if not level.is_exhausted]
        claim, sent_at = statements.ClaimResult(), clock.now()
        for level, reserved in reserve(levels, limit):
            found = await self._claim_from(level, limit - reserved - len(claim.runs), scope)
            if found is None:
                return (claim, sent_at) if claim.runs else None
            claim.add(found)
            level.owed -= len(found.runs)
            if 0 < len(claim.runs) < limit - reserved:
                break  # what was found can start: the worker claims again if it has room for more
        for level in levels:
            level.owed = 0.0 if level.is_exhausted else level.owed + len(claim.runs) * LOWER_SHARE
        return claim, sent_at

    async def _look(self, has_none: bool) -> bool:
        """Find out at which levels runs are due. Return whether the server answered.

        If the worker ``has_none``, because all that was due could not be claimed, newer runs are enough for a while.
        """
        changes, now = self._changes, clock.now()
        since = statements.BEFORE_ALL[0]
        if has_none and now < self._complete_at:
            since = self._since
        else:
            self._complete_at = now + POLL_INTERVAL_SECONDS if self._polls else 0.0

        async def ask(connection: Connection) -> tuple[set[Priority], str]:
            return await statements.due_levels(connection, self._namespace, since)

        answer = await self._answer(ask)
        if answer is None:
            self._complete_at = 0.0
            return False
        due, at = answer
        if self._polls and self._looked_at == 0.0:
            # the server plans both statements now, and not when many idle workers are notified at once
            due.add(Priority.NORMAL)
            for level in self._levels:
                level.is_fast, level.was_fast = True, False
        for level in self._levels:
            level.is_exhausted = level.priority not in due
        self._seen, self._looked_at = changes, clock.now()
        if since == statements.BEFORE_ALL[0]:
            self._since, self._look_at = at, self._looked_at + POLL_INTERVAL_SECONDS
            if self._complete_at > 0.0:  # else something has changed meanwhile
                self._complete_at = self._look_at
        else:
            self._look_at = self._complete_at
        return True

    async def _claim_highest(self, limit: int, scope: statements.Scope) -> statements.ClaimResult | None:
        """Claim runs of the highest level with due runs. Return None without an answer.

        An idle worker that is notified does this before it looks at all levels: the run starts one round trip sooner.
        Where many due runs may not be claimed, it looks only for those that became due since they were read.
        If it finds fewer than it asks for, it looks for other new runs once it has started these, but not each time if
        it is notified often.
        """
        changes, token = self._changes, self._new_token()
        past = max(level.read_until for level in self._levels)

        async def ask(connection: Connection) -> statements.ClaimResult:
            return await statements.claim_waiting(connection, self._namespace, token, limit, scope, past, priority=None)

        claim = await self._answer(ask, token)
        if claim is None or not claim.runs:
            return claim
        level = next(level for level in self._levels if level.priority == claim.priority)
        level.was_fast, level.is_fast = True, len(claim.runs) == limit
        level.past = claim.past if level.is_fast else statements.BEFORE_ALL
        if level.is_fast or clock.now() >= self._complete_at:
            self._look_at = min(self._look_at, clock.now() + LOOK_INTERVAL_SECONDS)
            level.is_exhausted, self._seen = False, changes
        elif self._looks_later():
            self._look_at = min(self._look_at, self._looked_at + LOOK_INTERVAL_SECONDS)
            self._seen = changes
        return claim

    def _new_token(self) -> str:
        return f"{self._name}:{secrets.token_hex(6)}"

    async def _claim_from(self, level: Level, limit: int, scope: statements.Scope) -> statements.ClaimResult | None:
        """Claim up to ``limit`` runs of ``level``, which may take several statements. Return None without an answer."""
        found: statements.ClaimResult | None = statements.ClaimResult()
        for _ in range(MAX_CLAIMS_OF_LEVEL if limit > 0 else 0):
            found = await self._claim_level(level, min(limit, self._limit), scope)
            if found is None or found.runs or found.dead or level.is_exhausted:
                break
        return found

    async def _claim_level(self, level: Level, limit: int, scope: statements.Scope) -> statements.ClaimResult | None:
        """Claim up to ``limit`` runs of ``level``. Return None without an answer."""
        changes = self._changes
        is_fast = level.is_fast and not (level.was_fast and clock.now() >= level.complete_at)
        token = self._new_token()
        if level.starts_over:
            level.past, level.starts_over = statements.BEFORE_ALL, False
        if was_truncated := level.read_until != statements.BEFORE_ALL:
            limit = min(limit, MAX_RUNS_BESIDE_OTHERS if level.had_runs else MAX_RUNS_OF_POLL)

        async def ask(connection: Connection) -> statements.ClaimResult:
            given = (connection, self._namespace, token, limit, scope)
            if is_fast:
                return await statements.claim_waiting(*given, level.past, priority=level.priority)
            return await statements.claim(*given, level.after, priority=level.priority, was_truncated=was_truncated)

        claim = await self._answer(ask, token)
        if claim is None:
            return None
        self._limit = max(limit, min(2 * self._limit, MAX_RUNS))
        level.was_fast, level.had_runs = is_fast, bool(claim.runs or claim.dead)
        level.is_fast = not claim.is_truncated if not is_fast else len(claim.runs) == limit
        level.past = claim.past if is_fast and level.is_fast else statements.BEFORE_ALL
        was_blocked = level.is_blocked
        level.is_blocked = not claim.runs and (was_blocked if is_fast else claim.is_locked)
        if is_fast:
            return claim
        level.read_until = claim.past
        # where runs had lost their worker, more of them may be due: only a claim of all kinds takes them
        level.complete_at = clock.now() + (0.0 if claim.lost else POLL_INTERVAL_SECONDS)
        is_complete, level.after = claim.after == 0 and level.after == 0, claim.after
        if claim.is_locked:
            is_complete = was_blocked and level.is_blocked  # by what is locked for longer than a claim takes
        if claim.is_contended:
            level.after = random.randrange(scope.newest + 1)  # workers that start at the same job hinder each other
        if len(claim.runs) + len(claim.dead) < limit and is_complete and changes == self._changes:
            level.is_exhausted = True
        return claim

    async def _answer(self, ask: Callable[[Connection], Awaitable[Answer]], token: str = "") -> Answer | None:
        """Return what the server answers; None without an answer. ``token`` is that of a claim."""
        try:
            return await self._session.run(ask, TIMEOUT_SECONDS)
        except Unanswered as error:
            if error.was_asked and token:
                self._lost[token] = 0.0
        except psycopg.errors.UniqueViolation:
            pass  # another worker has claimed a run of the same exclusive job
        except psycopg.OperationalError as error:
            log.warning("database.failed", error=reason(error))
            self._limit = max(1, self._limit // 2)
            await asyncio.sleep(ERROR_PAUSE_SECONDS)
        return None
