"""A few sessions that pages share. They are read-only, and a statement is cancelled after two
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn
from psycopg_pool import ConnectionPool, PoolTimeout

from yamlsched import db
from yamlsched.db.connection import SESSION_SETTINGS
from yamlsched.db.dsn import parse_dsn
from yamlsched.db.session import Session
from yamlsched.errors import EnvironmentFailed

READER_SETTINGS = {
    **SESSION_SETTINGS,
    "statement_timeout": "2s",
    "lock_timeout": "1s",
    "default_transaction_read_only": "on",
}
"""The privileges of the role decide what a session may do; that it is read-only as well costs
nothing.
"""
ACTION_SETTINGS = {**SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "5s"}
CONNECT_TIMEOUT_SECONDS = 5
WAIT_SECONDS = 5.0
"""How long a request waits for a session that others use."""
FAILURE_SECONDS = 1.0
"""For this long after a failed attempt to connect, requests get its error at once."""
IDLE_SECONDS = 60.0
"""Sessions that are not needed for this long are closed, also below an application that does not
pass on its end.
"""


class Pool:
    """At most ``size`` sessions on ``dsn``, opened when they are needed. Requests that wait for one
    get it in turn.
    """

    def __init__(self, dsn: str, size: int, settings: dict[str, str]) -> None:
        self._dsn = dsn
        self._settings = settings
        self._failure: tuple[float, Exception] = (float("-inf"), EnvironmentFailed())
        self._sessions: ConnectionPool[Session] = ConnectionPool(
            connection_class=type("PageSession", (Session,), {"connect": self._connect}),
            min_size=0,
            max_size=size,
            open=False,  # its threads would not survive a fork of the application
            max_idle=IDLE_SECONDS
            / size,  # each time, one of the sessions that were not needed is closed
            num_workers=1,  # opening a session changes the environment of the process
        )

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Yield a session in a transaction. Raises like ``session``."""
        with self.session() as session, session.transaction():
            yield session

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Yield a session. Raises EnvironmentFailed if none can be had."""
        self._sessions.open()
        session = self._take()
        try:
            yield session
        finally:
            self._sessions.putconn(session)

    def close(self) -> None:
        self._sessions.close()

    def _take(self) -> Session:
        """Return a session on tables that support this yamlsched, which may have been migrated
        since it was used.
        """
        for attempt in count():
            try:
                session = self._sessions.getconn(WAIT_SECONDS)
            except PoolTimeout:
                what = (
                    "no connection to the database: it does not answer, or all {} sessions of this"
                    " page are in use"
                )
                raise EnvironmentFailed(what.format(self._sessions.max_size)) from None
            try:
                if not session.closed:
                    db.migrations.ensure_usable(session, apply=False)
                    return session
            except BaseException as error:
                session.close()
                # another one may work
                is_lost = isinstance(error, psycopg.Error | EnvironmentFailed)
                if not is_lost or isinstance(error, db.migrations.WrongTables):
                    raise
            finally:
                if session.closed:
                    self._sessions.putconn(session)
            if attempt >= self._sessions.max_size and self._has_failed():
                break
        raise self._failure[1].with_traceback(None)

    def _connect(self, *_: Any, **options: Any) -> Session:
        """Open a session. After an error the pool gets a closed one, because its own requests do
        not see errors.
        """
        if not self._has_failed():
            try:
                return db.connect(_with_timeout(self._dsn), self._settings)
            except (psycopg.Error, EnvironmentFailed) as error:
                self._failure = (time.monotonic(), error)
        closed = PGconn.connect_start(b"none")
        closed.finish()
        return Session(closed)

    def _has_failed(self) -> bool:
        """Return whether an attempt to connect has just failed."""
        return time.monotonic() - self._failure[0] < FAILURE_SECONDS


def _with_timeout(dsn: str) -> str:
    return (
        dsn
        if "connect_timeout" in parse_dsn(dsn)
        else make_conninfo(dsn, connect_timeout=CONNECT_TIMEOUT_SECONDS)
    )
