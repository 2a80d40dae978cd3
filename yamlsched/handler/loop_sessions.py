"""The database as coroutines that share a process use it: many at once, on one event loop, with few
sessions.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from yamlsched.db.connection import connect_for_handler_async
from yamlsched.db.session import AsyncHandlerSession
from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.backends import MAX_OUTAGE_SECONDS, Backend, Returned
from yamlsched.handler.sessions import persist, sessions

T = TypeVar("T")
MAX_TRANSACTIONS = 10
"""Sessions of a child for ``run.transaction()``; what needs another one waits."""
MAX_RECORDERS = 4
"""Sessions of a child for what is recorded beside transactions, each used by a thread."""
MAX_IDLE_SECONDS = 1.0


class LoopSessions:
    """The sessions of one child."""

    def __init__(self, dsn: str, namespace: str) -> None:
        self.dsn, self.namespace = dsn, namespace
        self._free = asyncio.Semaphore(MAX_TRANSACTIONS)
        self._idle: list[tuple[float, AsyncHandlerSession]] = []
        self._threads = ThreadPoolExecutor(MAX_RECORDERS, "yamlsched-effects")

    @asynccontextmanager
    async def use(self, seconds: float) -> AsyncIterator[AsyncHandlerSession]:
        """Yield a session for a transaction. Raises EnvironmentFailed if none is free within
        ``seconds``.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
        except TimeoutError:
            raise EnvironmentFailed(
                f"no connection was free within {seconds:.0f} s: other runs of this process use all"
            ) from None
        try:
            async with self._kept() as session:
                yield session
        finally:
            self._free.release()

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[AsyncHandlerSession]:
        """Yield an idle session, or a new one, which is kept unless it broke."""
        session = None
        while session is None and self._idle:
            _, session = self._idle.pop()
            if session.closed:
                session = None
        if session is None:
            session = await connect_for_handler_async(self.dsn)
        try:
            yield session
        finally:
            if session.info.transaction_status == TransactionStatus.IDLE and not session.closed:
                session.row_factory = namedtuple_row  # the handler may have changed it
                self._idle.append((time.monotonic(), session))
            else:
                await session.close()

    async def offload(self, call: Callable[[], T], must_finish: bool = False) -> T:
        """Return what ``call`` returns, which may wait for the server, in a thread.

        A call that has started, or ``must_finish``, is awaited even if the attempt is cancelled:
        what it writes must not be forgotten.
        """
        job: Future[T] = self._threads.submit(contextvars.copy_context().run, call)
        future, cancelled = asyncio.wrap_future(job), None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                if not must_finish and job.cancel():
                    raise
                cancelled = error
        failure = future.exception()
        if cancelled is not None or failure is not None:
            raise cancelled or failure  # type: ignore[misc]
        return future.result()

    def close_idle(self, loop: asyncio.AbstractEventLoop, is_all: bool) -> None:
        """Close the sessions that were not used for a moment; ``is_all``: nothing is executing."""
        until = time.monotonic() - MAX_IDLE_SECONDS
        while self._idle and self._idle[0][0] < until:
            _, session = self._idle.pop(0)
            loop.create_task(session.close())
        if is_all and sessions.has_open:
            self._threads.submit(sessions.close_unused)


@dataclass(slots=True)
class LoopBackend(Backend):
    """The scheduler's database, for an attempt that shares its event loop with others."""

    is_shared = True
    sessions: LoopSessions = field(kw_only=True)

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncHandlerSession]:
        async with self.sessions.use(self.timeout or MAX_OUTAGE_SECONDS) as session:
            yield session

    async def offload(self, call: Callable[[], T], must_finish: bool = False) -> T:
        return await self.sessions.offload(call, must_finish)

    def record(self, statement: Callable[..., Returned], *arguments: Any) -> Returned:
        """Call ``statement`` with the session of this thread; see ``Backend.record``."""
        purpose = f"effects {threading.get_ident()}"

        def execute() -> Returned:
            with sessions.use(self.dsn, purpose) as session:
                return statement(session, *arguments)

        return persist(execute, MAX_OUTAGE_SECONDS)
