"""A few sessions that pages share. They are read-only, and a statement is cancelled after two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from yamlsched import db
from yamlsched.db.connection import SESSION_SETTINGS, describe
from yamlsched.db.dsn import parse_dsn
from yamlsched.db.session import Session
from yamlsched.errors import EnvironmentFailed

READER_SETTINGS = {
    **SESSION_SETTINGS,
    "statement_timeout": "2s",
    "lock_timeout": "1s",
    "default_transaction_read_only": "on",
}
"""The privileges of the role decide what a session may do; that it is read-only as well costs nothing."""
ACTION_SETTINGS = {**SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "5s"}
CONNECT_TIMEOUT_SECONDS = 5
WAIT_SECONDS = 5.0
"""How long a request waits for a session that others use."""
FAILURE_SECONDS = 1.0
"""For this long after a failed attempt to connect, requests get its error at once."""
IDLE_SECONDS = 60.0
"""A session that has not been used for this long is closed, also below an application that does not pass on its end."""


class Pool:
    """At most ``size`` sessions on ``dsn``, opened when they are needed."""

    def __init__(self, dsn: str, size: int, settings: dict[str, str]) -> None:
        self._dsn = dsn
        self._settings = settings
        self._free = threading.BoundedSemaphore(size)
        self._size = size
        self._idle: list[tuple[float, Session]] = []  # sessions that nobody uses, and since when
        self._timer: threading.Timer | None = None
        self._mutex = threading.Lock()
        self._connecting = threading.Lock()  # opening a session changes the environment of the process
        self._failure: tuple[float, EnvironmentFailed] = (float("-inf"), EnvironmentFailed())
        self._is_closed = False

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Yield a session in a transaction. Raises like ``session``."""
        with self.session() as session, session.transaction():
            yield session

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Yield a session. Raises EnvironmentFailed if none can be had."""
        if not self._free.acquire(timeout=WAIT_SECONDS):
            raise EnvironmentFailed(f"all {self._size} sessions of this page are in use: reload the page")
        try:
            session = self._take()
            try:
                yield session
            finally:
                self._return(session)
        finally:
            self._free.release()

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
        for _, session in idle:
            session.close()

    def _take(self) -> Session:
        """Return a session on tables that support this yamlsched, which may have been migrated since it was used."""
        while True:
            with self._mutex:
                session = self._idle.pop()[1] if self._idle else None
            if session is None:
                return self._connect()
            try:
                db.migrations.ensure_usable(session, apply=False)
            except db.migrations.WrongTables:
                session.close()
                raise
            except (psycopg.Error, EnvironmentFailed):
                session.close()  # another one may work
            else:
                return session

    def _connect(self) -> Session:
        if not self._connecting.acquire(timeout=WAIT_SECONDS):
            raise EnvironmentFailed("no connection to the database: it does not answer")
        try:
            failed_at, why = self._failure
            if time.monotonic() - failed_at < FAILURE_SECONDS:
                raise type(why)(str(why))
            try:
                session = db.connect(_with_timeout(self._dsn), self._settings)
                try:
                    db.migrations.ensure_usable(session, apply=False)
                except BaseException:
                    session.close()
                    raise
            except psycopg.OperationalError as error:
                failed = EnvironmentFailed(describe(error))
                self._failure = (time.monotonic(), failed)
                raise failed from error
            except EnvironmentFailed as error:
                self._failure = (time.monotonic(), error)
                raise
            return session
        finally:
            self._connecting.release()

    def _return(self, session: Session) -> None:
        is_usable = not session.closed and session.info.transaction_status == TransactionStatus.IDLE
        with self._mutex:
            if is_usable and not self._is_closed:
                self._idle.append((time.monotonic(), session))
                if self._timer is None:
                    self._set_timer()
                return
        session.close()

    def _set_timer(self) -> None:
        self._timer = threading.Timer(IDLE_SECONDS, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        """Close the sessions that have been idle for long; look again later if there are others."""
        with self._mutex:
            limit = time.monotonic() - IDLE_SECONDS
            old = [session for since, session in self._idle if since <= limit]
            self._idle = [entry for entry in self._idle if entry[0] > limit]
            self._timer = None
            if self._idle and not self._is_closed:
                self._set_timer()
        for session in old:
            session.close()


def _with_timeout(dsn: str) -> str:
    return dsn if "connect_timeout" in parse_dsn(dsn) else make_conninfo(dsn, connect_timeout=CONNECT_TIMEOUT_SECONDS)
