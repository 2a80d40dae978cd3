"""The database sessions of a process that calls handlers. They open on demand and close when they
are idle.

Each process has up to two: one for the transactions of handlers, one for what is recorded outside
of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from yamlsched import db
from yamlsched.errors import EnvironmentFailed

T = TypeVar("T")
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 2.0
UNANSWERED = (psycopg.OperationalError, psycopg.InterfaceError, EnvironmentFailed)
RECORDING_SETTINGS = {
    "statement_timeout": "8s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
}
"""For the session that records: a statement that is not answered in time is sent again on another
session.
"""


class HandlerSessions:
    """The sessions of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # threads of a handler may enter effects concurrently
        self._sessions: dict[tuple[str, str], Any] = {}
        self._in_use = 0
        self._inherited: list[Any] = []

    def forget(self) -> None:
        """Start without sessions in a process that a handler forked. The inherited ones are neither
        used nor closed.
        """
        self._inherited.append(self._sessions)
        self._sessions, self.lock, self._in_use = {}, threading.RLock(), 0

    @property
    def has_open(self) -> bool:
        return bool(self._sessions)

    @contextmanager
    def use(self, dsn: str, purpose: str) -> Iterator[Any]:
        """Yield the session for ``purpose``, opened if needed.

        Raises EnvironmentFailed if it cannot be opened. A broken session is replaced at its next
        use.
        """
        with self.lock:
            self._in_use += 1
        try:
            yield self._session(dsn, purpose)
        finally:
            with self.lock:
                self._in_use -= 1

    def _session(self, dsn: str, purpose: str) -> Any:
        with self.lock:
            session = self._sessions.get((dsn, purpose))
            if session is not None and session.info.transaction_status != TransactionStatus.IDLE:
                session.close()  # it broke, or a transaction was left open
            if session is None or session.closed:
                self._sessions.pop((dsn, purpose), None)
                is_for_handler = purpose == "transaction"
                session = (
                    db.connect_for_handler(dsn)
                    if is_for_handler
                    else db.connect(dsn, RECORDING_SETTINGS)
                )
                self._sessions[dsn, purpose] = session
            session.row_factory = namedtuple_row  # the previous handler may have changed it
            return session

    def close(self) -> None:
        """Close the sessions. No handler may be using them."""
        with self.lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()

    def close_unused(self) -> None:
        """Close the sessions unless one is in use."""
        with self.lock:
            if not self._in_use:
                self.close()


def _waits(seconds: float) -> Iterator[float]:
    """Yield the seconds to wait after each call that failed, until ``seconds`` have passed."""
    wait, end = MIN_RETRY_SECONDS, time.monotonic() + seconds
    while time.monotonic() + wait <= end:
        yield wait
        wait = min(2 * wait, MAX_RETRY_SECONDS)


def persist(do: Callable[[], T], seconds: float) -> T:
    """Return the result of ``do``, which is called again, on a new session, while the database does
    not answer.
    """
    for wait in _waits(seconds):
        try:
            return do()
        except UNANSWERED:
            time.sleep(wait)
    return do()


async def persist_async(do: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The same for an event loop."""
    for wait in _waits(seconds):
        try:
            return await do()
        except UNANSWERED:
            await asyncio.sleep(wait)
    return await do()


sessions = HandlerSessions()
os.register_at_fork(after_in_child=sessions.forget)
