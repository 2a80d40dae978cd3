"""Where a run records its effects and its success.

A backend belongs to one attempt. ``run_id``, ``attempt`` and ``locked_by`` fence everything that
the attempt writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import psycopg

from yamlsched.db.connection import connect_for_handler_async
from yamlsched.db.dsn import redactor
from yamlsched.db.query import load
from yamlsched.db.session import AsyncHandlerSession, HandlerSession
from yamlsched.errors import EnvironmentFailed, LeaseLost
from yamlsched.handler.sessions import persist, persist_async, sessions
from yamlsched.runs import effects, own_transaction
from yamlsched.runs.effects import EffectEntry, EffectStatement, FoundEffect
from yamlsched.runs.enqueue import translate_errors
from yamlsched.runs.lifecycle import EnqueueBatch
from yamlsched.runs.progress import Progress

MAX_OUTAGE_SECONDS = 30.0
"""How long the database may be unreachable before an attempt fails."""
BEGIN_TIMEOUT_SECONDS = 8.0
"""A server that does not start a transaction within this time counts as lost, and another session
is opened.
"""
OUTLIVED = "run {}: attempt {} outlived its lease; nothing was committed"

Returned = TypeVar("Returned")
_redactor = lru_cache(1)(redactor)


@dataclass(slots=True)
class Backend:
    """The scheduler's database. ``timeout`` is the attempt's time limit in seconds."""

    dsn: str
    namespace: str
    run_id: int
    attempt: int
    locked_by: str
    timeout: float | None = None
    report: Callable[[Progress], None] = lambda progress: None  # to the process that writes it
    # the event loop is shared with other attempts, so that nothing may block it
    is_shared: ClassVar[bool] = False

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield the session for handlers, inside a transaction.

        A session that the server closed since its last use is replaced, without the handler
        noticing. Raises EnvironmentFailed or psycopg's error if none can be opened for
        MAX_OUTAGE_SECONDS.
        """
        with ExitStack() as block:
            yield persist(lambda: self._begin(block), MAX_OUTAGE_SECONDS)

    def _begin(self, block: ExitStack) -> HandlerSession:
        with ExitStack() as opening:
            use = sessions.use(self.dsn, "transaction")
            session: HandlerSession = opening.enter_context(use)
            # the network may have dropped it since its last use
            session.answer_within = BEGIN_TIMEOUT_SECONDS
            opening.enter_context(session.transaction())
            session.configure_transaction(self.timeout)
            session.answer_within = None
            block.push(opening.pop_all())
            return session

    def redact(self, note: str) -> str:
        """Return ``note`` without passwords."""
        return _redactor(self.dsn)(note)

    async def succeed(
        self,
        session: Any,
        result: str | None,
        enqueued: list[EnqueueBatch],
        last: Progress | None,
    ) -> None:
        """Write the success of the run with what it enqueued and its last progress, in the open
        transaction of ``session``, which is asynchronous or a ``blocking.Session``. Raises
        LeaseLost if it is lost.
        """
        fence = self.run_id, self.attempt, self.locked_by
        with translate_errors():
            for parameters in own_transaction.fan_out(self.namespace, self.run_id, enqueued):
                await session.execute(load("enqueue")["enqueue_many"], parameters)
        if not await own_transaction.succeed_in(session, fence, result, last):
            raise LeaseLost(OUTLIVED.format(self.run_id, self.attempt))

    # -- for an async def --------------------------------------------------------------------------

    async def offload(self, call: Callable[[], Returned], must_finish: bool = False) -> Returned:
        """Return what ``call`` returns, which waits for the server."""
        return call()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncHandlerSession]:
        """Yield a session for one transaction."""
        session = await connect_for_handler_async(self.dsn)
        try:
            yield session
        finally:
            await session.close()

    @asynccontextmanager
    async def async_transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Yield a session, inside a transaction; see ``transaction``."""
        async with AsyncExitStack() as block:
            yield await persist_async(lambda: self._begin_async(block), MAX_OUTAGE_SECONDS)

    async def _begin_async(self, block: AsyncExitStack) -> AsyncHandlerSession:
        async with AsyncExitStack() as opening:
            session = await opening.enter_async_context(self.async_session())
            try:
                async with asyncio.timeout(BEGIN_TIMEOUT_SECONDS):
                    await opening.enter_async_context(session.transaction())
                    await session.configure_transaction(self.timeout)
            except TimeoutError as error:
                session.pgconn.finish()
                raise EnvironmentFailed(
                    f"the database did not answer within {BEGIN_TIMEOUT_SECONDS:.0f} s"
                ) from error
            block.push_async_exit(opening.pop_all())
            return session

    # ----------------------------------------------------------------------------------------------

    def record(self, statement: Callable[..., Returned], *arguments: Any) -> Returned:
        """Call ``statement`` with a session, and again with a new one while the database does not
        answer.

        A mail that was sent must not be forgotten because the server restarted. The session is not
        that of the transaction: what is recorded remains even if the transaction is rolled back.
        """

        def execute() -> Returned:
            with sessions.lock, sessions.use(self.dsn, "effects") as session:
                return statement(session, *arguments)

        return persist(execute, MAX_OUTAGE_SECONDS)

    def claim(self, entry: EffectEntry) -> FoundEffect | None:
        return self.record(effects.claim, entry)

    def write(
        self,
        statement: EffectStatement,
        entry: EffectEntry,
        doubted: str | None = None,
        result: str | None = None,
    ) -> bool:
        """Change an effect; see ``effects.write``."""
        return self.record(effects.write, statement, entry, doubted, result)
