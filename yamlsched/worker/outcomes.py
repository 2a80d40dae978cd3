"""Outcomes: written in batches, each only if its run is still ours, until it is known what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import psycopg

from yamlsched import log
from yamlsched.runs import SUCCESS_WITHOUT_RESULT, End, Ending, Outcome, Status, after_attempt, in_ascii
from yamlsched.store import runs as store
from yamlsched.store.connection import reason
from yamlsched.worker import clock
from yamlsched.worker.executors.processes.child_handle import Attempt
from yamlsched.worker.leases import lose
from yamlsched.worker.sessions import Connection, Session, Unanswered

AT_ONCE = 1_000  # outcomes in one statement
SUCCESSES = 2_000  # of these in one statement: it is quicker for each, and all other work waits longer
MOST = 4_000  # unwritten outcomes, with which nothing more is claimed
SMALL_PAYLOAD = 256  # characters; a larger one is dropped as soon as its run has ended
WITHIN = 20.0  # seconds
FAN_OUT_WITHIN = 300.0  # seconds, for a fan-out of many statements
MAX_TIMEOUTS = 3  # of a fan-out that is written by itself: then its attempt has failed
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds, after the server gave up on a lock or a statement
# SQLSTATE of what is refused for its own sake, whoever asks: data, constraints, limits, and our own functions
REFUSED = ("22", "23", "54", "YS")


Success: TypeAlias = tuple[Attempt, float]
"""An attempt whose handler returned nothing, and the seconds that it took."""


@dataclass(slots=True, eq=False)
class Item:
    """An attempt's end, on its way to the database."""

    held: Attempt
    ending: Ending
    outcome: Outcome
    enqueued: list[Any] = field(default_factory=list)
    is_replaced: bool = False  # what it was to be was refused
    pause: float = FIRST_PAUSE
    not_before: float = 0.0
    is_told: bool = False  # stands in the database, and has been said
    timeouts: int = 0

    @property
    def is_wanted(self) -> bool:
        return not (self.is_told or self.held.is_lost)


class Outcomes:
    """Writes what ``add`` is told. ``on_told(item, run_at)`` hears of each that stands in the database, or of which
    nothing is to be written, ``on_successes(ends)`` of many at once; ``on_room`` that some were dealt with. ``conceal``
    takes secrets out of a text.

    Successes that leave nothing but the fact are kept and written in bulk, as long as that meets with no difficulty:
    then they become items like others. Large fan-outs are written by ``fan_outs``, a session of their own, so that
    nobody else's outcome waits for them.
    """

    def __init__(
        self,
        session: Session,
        fan_outs: Session,
        namespace: str,
        conceal: Callable[[str], str],
        on_told: Callable[[Item, datetime | None], None],
        on_successes: Callable[[list[Success]], None],
        on_room: Callable[[], None],
    ) -> None:
        self._session, self._fan_outs, self._namespace, self._conceal = session, fan_outs, namespace, conceal
        self._on_told, self._on_successes, self._on_room = on_told, on_successes, on_room
        self._waiting: deque[Item] = deque()
        self._writing: list[Item] = []
        self._large: deque[Item] = deque()  # with large fan-outs; the first one is being written
        self._successes: dict[str, list[Success]] = {}  # by claim
        self._count = 0  # of these
        self._first_end = math.inf  # no lease of what is held here ends sooner
        self._writing_successes: list[Success] = []
        self._most = AT_ONCE
        self._news, self._large_news = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        items = len(self._waiting) + len(self._writing) + len(self._large)
        return items + self._count + len(self._writing_successes)

    def _items(self) -> Iterable[Item]:
        return (*self._waiting, *self._writing, *self._large)

    def held(self) -> Iterable[Attempt]:
        """Return the runs whose outcomes are not written yet."""
        lists = (*self._successes.values(), self._writing_successes)
        successes = [held for ends in lists for held, _ in ends]
        return [*successes, *(item.held for item in self._items())]

    def has_room(self) -> bool:
        """Say whether what waits to be written is so little that more may be begun."""
        return len(self) < MOST

    def is_behind(self) -> bool:
        """Say whether a lease is over whose outcome is not written: to claim now might take that very run again.

        A run whose row somebody has locked does not count: no claim takes it either, and it may stay so for hours.
        """
        now = clock.now()
        if now < self._first_end:
            return False  # leases are only prolonged
        stuck = {id(item.held) for item in self._items() if item.not_before or not item.is_wanted}
        ends = [held.lease_ends for held in self.held() if id(held) not in stuck]
        self._first_end = min(ends, default=math.inf)
        return self._first_end <= now

    def add(self, held: Attempt, ending: Ending, enqueued: list[Any]) -> None:
        """Let the end of an attempt be written soon."""
        item = self._item(held, ending, enqueued)
        self._first_end = min(self._first_end, held.lease_ends)
        if enqueued and store.is_large(enqueued):
            self._large.append(item)
            self._large_news.set()
        else:
            self._waiting.append(item)
            self._news.set()

    def add_successes(self, ends: list[Success]) -> None:
        """The same for handlers that returned nothing."""
        by_claim, first_end = self._successes, self._first_end
        for end in ends:
            held = end[0]
            if len(held.run.payload) > SMALL_PAYLOAD:
                held.run = held.run._replace(payload="")
            if (token := held.run.locked_by) in by_claim:
                by_claim[token].append(end)
            else:
                by_claim[token] = [end]
            if held.lease_ends < first_end:
                first_end = held.lease_ends
        self._first_end = first_end
        self._count += len(ends)
        self._news.set()

    def _item(self, held: Attempt, ending: Ending, enqueued: list[Any], is_replaced: bool = False) -> Item:
        job = held.job
        if len(held.run.payload) > SMALL_PAYLOAD:
            held.run = held.run._replace(payload="")
        outcome = after_attempt(held.run, ending, job.backoff, random.random(), self._conceal)
        return Item(held, ending, outcome, enqueued, is_replaced)

    async def write(self) -> None:
        """Write what there is, for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting or self._successes:
                if self._successes:
                    await self._write_successes()
                    self._on_room()
                if batch := self._batch():
                    self._writing = batch
                    self._waiting.extend(await self._write(batch, self._session, WITHIN))
                    self._writing = []
                    self._on_room()
                elif self._waiting and not self._successes:
                    await asyncio.sleep(FIRST_PAUSE)

    async def write_fan_outs(self) -> None:
        """Write large fan-outs, one after the other, for ever."""
        while True:
            await self._large_news.wait()
            self._large_news.clear()
            while self._large:
                item = self._large[0]
                await asyncio.sleep(max(0.0, item.not_before - clock.now()))
                for left in await self._write([item], self._fan_outs, FAN_OUT_WITHIN):
                    if left is not item:  # it has become a failure
                        self._waiting.append(left)
                        self._news.set()
                    else:
                        self._large.append(item)
                self._large.popleft()
                self._on_room()
            await self._fan_outs.drop()

    async def _write_successes(self) -> None:
        """Write successes, of one claim if most are: its fence is one for all of them."""
        claims = self._successes
        largest = max(claims, key=lambda token: len(claims[token]))
        if 2 * len(claims[largest]) < self._count:  # of many claims: they are one batch of many fences
            claims[largest] = [end for ends in claims.values() for end in ends]
            self._successes = claims = {largest: claims[largest]}
        batch, rest = claims[largest][:SUCCESSES], claims.pop(largest)[SUCCESSES:]
        if rest:
            claims[largest] = rest
        self._count -= len(batch)
        self._writing_successes = batch
        is_written = False
        with contextlib.suppress(Unanswered, psycopg.Error):
            is_written = await self._session.run(partial(store.succeed, runs=[held.run for held, _ in batch]), WITHIN)
        if is_written:
            self._on_successes(batch)
        else:
            self._waiting.extend(
                Item(held, Ending(End.RETURNED, took=took), SUCCESS_WITHOUT_RESULT)
                for held, took in batch
                if not held.is_lost
            )
        self._writing_successes = []

    def _batch(self) -> list[Item]:
        """Take from what waits what is to be written together: one that enqueues has a transaction of its own."""
        now, batch, later = clock.now(), list[Item](), list[Item]()
        while self._waiting and len(batch) < self._most:
            item = self._waiting.popleft()
            if item.not_before > now:
                later.append(item)
            elif item.enqueued:
                if batch:
                    self._waiting.appendleft(item)
                else:
                    batch = [item]
                break
            else:
                batch.append(item)
        self._waiting.extend(later)
        return batch

    async def _write(self, batch: list[Item], session: Session, within: float) -> list[Item]:
        """Write ``batch``; return what is to be written again.

        When the server gives up on a statement, for a lock or for its length, the next one is half as long, down to
        single runs: one that cannot be written must not hold up the others.
        """
        for item in batch:
            if item.ending.end is End.COMMITTED and item.is_wanted:
                self._tell(item, None)
        if not (batch := [item for item in batch if item.is_wanted]):
            return []
        sent = clock.now()
        try:
            left = await session.run(partial(self._write_once, batch), within)
        except Unanswered as error:
            # what was written is found out the next time
            is_slow = session is self._fan_outs and error.was_asked and clock.now() - sent >= within
            left = self._timed_out(batch) if is_slow else batch
        except psycopg.Error as error:
            if (error.sqlstate or "").startswith(REFUSED):
                why = str(error.diag.message_primary or error)
                left = self._refused(batch, why, isinstance(error, psycopg.errors.UntranslatableCharacter))
                self._most = 1
            elif isinstance(error, psycopg.OperationalError):
                log.warning("database.failed", error=reason(error), outcomes=len(batch))
                self._most = max(1, len(batch) // 2)
                for item in batch:
                    item.pause = min(2 * item.pause, LONGEST_PAUSE)
                    item.not_before = clock.now() + (item.pause if len(batch) == 1 else 0)
                left = self._timed_out(batch) if isinstance(error, psycopg.errors.QueryCanceled) else batch
            else:
                raise
        else:
            self._most = min(2 * self._most, AT_ONCE)
        return [item for item in left if item.is_wanted]

    def _timed_out(self, batch: list[Item]) -> list[Item]:
        """Return what is to be written in place of ``batch``: of a fan-out, after a few times, a failure."""
        item = batch[0]
        item.timeouts += 1
        if not item.enqueued or item.timeouts < MAX_TIMEOUTS:
            return batch
        runs = sum(len(batch.payloads) for batch in item.enqueued)
        why = f"the server did not write the {runs} runs that it enqueued before a timeout, {MAX_TIMEOUTS} times: "
        why += "enqueue fewer runs in one attempt, and let some of them enqueue the rest"
        return self._refused(batch, why, untranslatable=False)

    def _refused(self, part: list[Item], why: str, untranslatable: bool) -> list[Item]:
        """Return what is to be written in place of ``part``: each by itself, and one alone as a failure.

        A failure with a character that the database's encoding does not have (``untranslatable``) is written escaped.
        """
        if len(part) > 1:
            return part
        [item] = part
        if item.is_replaced:
            lose(item.held, f"its outcome was rejected: {why}")
            return []
        if untranslatable and (plain := in_ascii(item.outcome)) != item.outcome:
            item.outcome = plain
            return part
        if not item.enqueued:
            why = f"its outcome could not be stored: {why}"
        name = "EnqueueRefused" if item.enqueued else "OutcomeRefused"
        return [self._item(item.held, Ending(End.RAISED, why, name, took=item.ending.took), [], is_replaced=True)]

    async def _write_once(self, items: list[Item], connection: Connection) -> list[Item]:
        """Write ``items`` and tell what came of it; return those that are still to be written."""
        outcomes = [(item.held.run, item.outcome) for item in items]
        if items[0].enqueued:
            written = await store.finish_with(connection, self._namespace, *outcomes[0], items[0].enqueued)
        else:
            written = await store.finish(connection, outcomes)
        for item in items:
            if item.held.run.id in written:
                self._tell(item, written[item.held.run.id])
        rest = [item for item in items if item.held.run.id not in written]
        if not rest:
            return []
        ownership = await store.ownership(connection, [item.held.run for item in rest])
        return [item for item in rest if not self._is_settled(item, ownership[item.held.run.id])]

    def _tell(self, item: Item, run_at: datetime | None) -> None:
        item.is_told = True
        self._on_told(item, run_at)

    def _is_settled(self, item: Item, fate: str) -> bool:
        """Say whether nothing is left to be written about a run of which nothing was written."""
        if fate == store.OURS:
            return False
        if fate == Status.SUCCEEDED and item.outcome.status is not Status.SUCCEEDED:
            # its own transaction had committed before the end that we heard of
            item.outcome = Outcome(Status.SUCCEEDED)
            self._tell(item, None)
        elif fate == item.outcome.status:
            self._tell(item, None)  # written before, by a commit whose answer was lost
        else:
            lose(item.held, fate)
        return True
