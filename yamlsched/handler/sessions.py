"""The database sessions of a process that calls handlers. They open on demand and close when they are idle.

Each process has up to two: one for the transactions of handlers, one for what is recorded outside of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
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
POLL_INTERVAL_SECONDS = 0.02
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 2.0
RECORDING_SETTINGS = {"statement_timeout": "8s", "idle_in_transaction_session_timeout": "60s", "jit": "off"}
"""For the session that records: a statement that is not answered in time is sent again on another session."""
PARENT_SESSIONS = 6  # of a worker: claims, outcomes, large fan-outs, leases, the sync of a loop, the line on a terminal
SESSIONS_PER_CHILD = 2
MIN_CONNECTIONS = PARENT_SESSIONS + SESSIONS_PER_CHILD


class ConnectionPermits:
    """Lets at most ``count`` of the processes that inherit it have sessions at once.

    A permit is a lock on one byte of a nameless file, so that a process that dies releases it. Processes that wait
    share a lock on the byte after the last permit.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as this object exists
        self._held: int | None = None

    @classmethod
    def for_max_connections(cls, max_connections: int) -> ConnectionPermits:
        """Return the permits of a worker that may have ``max_connections``, its own included."""
        return cls(max(1, (max_connections - PARENT_SESSIONS) // SESSIONS_PER_CHILD))

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def acquire(self, seconds: float) -> None:
        """Wait for a permit. Raises EnvironmentFailed if none is free within ``seconds``."""
        if self._held is not None or self._take():
            return
        end = time.monotonic() + seconds
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, self._count)
        try:
            while not self._take():
                if time.monotonic() > end:
                    raise EnvironmentFailed(
                        f"no connection was free within {seconds:.0f} s: handlers of this worker have {self._count} "
                        "permits for their sessions; raise --max-connections"
                    )
                time.sleep(POLL_INTERVAL_SECONDS)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._count)

    def _take(self) -> bool:
        self._held = next((number for number in range(self._count) if self._try_lock(number)), None)
        return self._held is not None

    def _try_lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def is_wanted(self) -> bool:
        """Return whether another process waits for a permit."""
        if not self._try_lock(self._count):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._count)
        return False

    def forget(self) -> None:
        """Drop the permit in a forked process, which does not inherit the lock of its parent."""
        self._held = None

    def release(self) -> None:
        if self._held is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._held)
            self._held = None


class HandlerSessions:
    """The sessions of this process. Without ``permits`` their number is not limited."""

    def __init__(self) -> None:
        self.permits: ConnectionPermits | None = None
        self.lock = threading.RLock()  # threads of a handler may enter effects concurrently
        self._sessions: dict[tuple[str, str], Any] = {}
        self._in_use = 0
        self._inherited: list[Any] = []

    def forget(self) -> None:
        """Start without sessions in a process that a handler forked. The inherited ones are neither used nor closed."""
        self._inherited.append(self._sessions)
        self._sessions, self.lock, self._in_use = {}, threading.RLock(), 0
        if self.permits is not None:
            self.permits.forget()

    @property
    def has_open(self) -> bool:
        return bool(self._sessions)

    @contextmanager
    def use(self, dsn: str, purpose: str, seconds: float) -> Iterator[Any]:
        """Yield the session for ``purpose``, opened if needed. Wait up to ``seconds`` for a permit.

        Raises EnvironmentFailed if it cannot be opened. A broken session is replaced at its next use.
        """
        with self.hold(seconds):
            yield self._session(dsn, purpose)

    @contextmanager
    def hold(self, seconds: float) -> Iterator[None]:
        """Hold the permit of this process, for a session that is opened inside; wait for it up to ``seconds``."""
        with self.lock:
            if self.permits is not None:
                self.permits.acquire(seconds)
            self._in_use += 1
        try:
            yield
        finally:
            with self.lock:
                self._in_use -= 1
                if not self._in_use and self.permits is not None and (not self._sessions or self.permits.is_wanted()):
                    self.close()

    def _session(self, dsn: str, purpose: str) -> Any:
        with self.lock:
            session = self._sessions.get((dsn, purpose))
            if session is not None and session.info.transaction_status != TransactionStatus.IDLE:
                session.close()  # it broke, or a transaction was left open
            if session is None or session.closed:
                self._sessions.pop((dsn, purpose), None)
                is_for_handler = purpose == "transaction"
                session = db.connect_for_handler(dsn) if is_for_handler else db.connect(dsn, RECORDING_SETTINGS)
                self._sessions[dsn, purpose] = session
            session.row_factory = namedtuple_row  # the previous handler may have changed it
            return session

    def close(self) -> None:
        """Close the sessions. No handler may be using them."""
        with self.lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()
            if self.permits is not None:
                self.permits.release()

    def close_unused(self) -> None:
        """Close the sessions unless one is in use."""
        with self.lock:
            if not self._in_use:
                self.close()


def persist(do: Callable[[], T], seconds: float) -> T:
    """Return the result of ``do``, which is called again, on a new session, while the database does not answer."""
    wait, end = MIN_RETRY_SECONDS, time.monotonic() + seconds
    while True:
        try:
            return do()
        except (psycopg.OperationalError, psycopg.InterfaceError, EnvironmentFailed):
            if time.monotonic() + wait > end:
                raise
            time.sleep(wait)
            wait = min(2 * wait, MAX_RETRY_SECONDS)


async def persist_async(do: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The same for an event loop."""
    wait, end = MIN_RETRY_SECONDS, time.monotonic() + seconds
    while True:
        try:
            return await do()
        except (psycopg.OperationalError, psycopg.InterfaceError, EnvironmentFailed):
            if time.monotonic() + wait > end:
                raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_RETRY_SECONDS)


sessions = HandlerSessions()
os.register_at_fork(after_in_child=sessions.forget)
