"""The database sessions of a process that calls handlers: opened when a handler asks, closed when nothing uses them.

There are two for each process: one for the transactions of handlers, one for what is recorded beside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from yamlsched.errors import EnvironmentFailed

T = TypeVar("T")
POLL_INTERVAL_SECONDS = 0.02
RECORDING_SETTINGS = {"statement_timeout": "8s", "idle_in_transaction_session_timeout": "60s", "jit": "off"}
"""The limits of a session for what is recorded: a statement whose answer does not come is sent again on another."""
PARENT_SESSIONS = 6  # of a worker: claims, outcomes, large fan-outs, leases, the sync of a loop, the line on a terminal
SESSIONS_PER_CHILD = 2
MIN_CONNECTIONS = PARENT_SESSIONS + SESSIONS_PER_CHILD


class ConnectionPermits:
    """At most ``count`` processes that inherit this have sessions at once. One that dies holds no permit any more.

    A permit is a lock on one byte of a file without a name. Processes that wait share a lock on the byte behind.
    """

    def __init__(self, count: int) -> None:
        import tempfile

        self._count = count
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this
        self._held: int | None = None

    @classmethod
    def for_max_connections(cls, max_connections: int) -> ConnectionPermits:
        """Return the permits of a worker that may have so many connections, its own included."""
        return cls(max(1, (max_connections - PARENT_SESSIONS) // SESSIONS_PER_CHILD))

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def acquire(self, seconds: float) -> None:
        """Wait for a permit. Raises EnvironmentFailed when none is free within ``seconds``."""
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
        for number in range(self._count):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                self._held = number
                return True
        return False

    def is_wanted(self) -> bool:
        """Return whether another process waits for a permit."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._count)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._count)
        return False

    def forget(self) -> None:
        """Let a forked process ask for a permit of its own: it has not inherited its parent's."""
        self._held = None

    def release(self) -> None:
        if self._held is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._held)
            self._held = None


class HandlerSessions:
    """See the module. ``permits`` None: without a limit."""

    def __init__(self) -> None:
        self.permits: ConnectionPermits | None = None
        self._sessions: dict[tuple[str, str], Any] = {}
        self.lock = threading.RLock()  # a handler's threads may enter effects side by side
        self._in_use = 0
        self._inherited: list[Any] = []

    def forget(self) -> None:
        """Let a process that a handler forked open sessions of its own: these are neither used nor closed there."""
        self._inherited.append(self._sessions)
        self._sessions, self.lock, self._in_use = {}, threading.RLock(), 0
        if self.permits is not None:
            self.permits.forget()

    @property
    def has_open(self) -> bool:
        return bool(self._sessions)

    @contextmanager
    def use(self, dsn: str, purpose: str, seconds: float) -> Iterator[Any]:
        """Yield the session for ``purpose``, opened if there is none; wait up to ``seconds`` for the permission.

        Raises EnvironmentFailed when it cannot be opened. One that broke is replaced at its next use.
        """
        with self.lock:
            if self.permits is not None:
                self.permits.acquire(seconds)
            self._in_use += 1
        try:
            yield self._session(dsn, purpose)
        finally:
            with self.lock:
                self._in_use -= 1
                if not self._in_use and self.permits is not None and (not self._sessions or self.permits.is_wanted()):
                    self.close()

    def _session(self, dsn: str, purpose: str) -> Any:
        from psycopg.pq import TransactionStatus
        from psycopg.rows import namedtuple_row

        from yamlsched import store

        with self.lock:
            session = self._sessions.get((dsn, purpose))
            if session is not None and session.info.transaction_status != TransactionStatus.IDLE:
                session.close()  # it broke, or was left in the middle of something
            if session is None or session.closed:
                self._sessions.pop((dsn, purpose), None)
                is_own = purpose != "transaction"
                session = store.connect(dsn, RECORDING_SETTINGS) if is_own else store.connect_for_handler(dsn)
                self._sessions[dsn, purpose] = session
            session.row_factory = namedtuple_row  # whatever the handler before has chosen
            return session

    def close(self) -> None:
        """Close the sessions. To be called when no handler uses them."""
        with self.lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()
            if self.permits is not None:
                self.permits.release()


def persist(do: Callable[[], T], seconds: float) -> T:
    """Return what ``do`` returns, called again on a new session while the database does not answer."""
    import psycopg

    wait, end = 0.1, time.monotonic() + seconds
    while True:
        try:
            return do()
        except (psycopg.OperationalError, psycopg.InterfaceError, EnvironmentFailed):
            if time.monotonic() + wait > end:
                raise
            time.sleep(wait)
            wait = min(2 * wait, 2.0)


sessions = HandlerSessions()
"""Those of this process."""
os.register_at_fork(after_in_child=sessions.forget)
