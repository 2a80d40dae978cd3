"""Opening sessions. A session keeps no state beyond a transaction, so that PgBouncer may be in
between.

A direct session is configured once, when it is opened. Behind a pooler each transaction may run in
another session, so ``set local`` configures each transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row

from yamlsched import durations
from yamlsched.db.dsn import conninfo, dsn_settings
from yamlsched.db.query import execute, load
from yamlsched.db.session import (
    AsyncHandlerSession,
    AsyncSession,
    HandlerSession,
    Session,
    Settings,
)
from yamlsched.errors import EnvironmentFailed

T = TypeVar("T", bound=psycopg.Connection[Any])
A = TypeVar("A", bound=psycopg.AsyncConnection[Any])
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # its warnings are raised as well
SESSION_SETTINGS: Settings = {
    "statement_timeout": "60s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    # our statements are short: compiling one takes a second, executing it milliseconds
    "jit": "off",
}
"""The limits of a session. The ``options`` of the DSN take precedence."""
PINNED_SETTINGS: Settings = {
    # a function in another schema must not shadow a built-in one
    "search_path": "pg_catalog, pg_temp",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    # statements fail where a policy would hide rows, as if there were none
    "row_security": "off",
}
"""Settings that our statements rely on. They override those of the role, the database and the DSN.
"""
KEEPALIVE_SETTINGS: Settings = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""With these the server notices within half a minute that the client's host has vanished, and ends
the session.
"""
CONNECT_ARGUMENTS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "row_factory": namedtuple_row,
}
ANSWER_MARGIN_SECONDS = 5.0
"""How long after statement_timeout a server without an answer counts as lost."""
MAX_REASON_CHARS = 500
_utc_lock = threading.Lock()
_utc: list[str | None] = []
"""The former values of PGTZ of the blocks of ``in_utc`` that this process is in."""


def connect(dsn: str, settings: Settings = SESSION_SETTINGS) -> Session:
    """Open a session in UTC, in autocommit mode. Rows are named tuples.

    Raises EnvironmentFailed, with a message for users, if the server cannot be reached.
    """
    own = {**_defaults(settings, dsn), **PINNED_SETTINGS}
    with _opened(Session, dsn, {**_defaults(KEEPALIVE_SETTINGS, dsn), **own}) as (
        connection,
        server,
    ):
        connection.configure_transactions({**dsn_settings(dsn), **own} if server.is_pooled else {})
        connection.answer_within = _answer_within(connection, own)
    return connection


def connect_for_handler(dsn: str) -> HandlerSession:
    """Open a session for a handler's own statements. Raises EnvironmentFailed if the server cannot
    be reached.
    """
    own = _defaults(KEEPALIVE_SETTINGS, dsn)
    with _opened(HandlerSession, dsn, own) as (connection, server):
        connection.answer_within = None  # the job's timeout limits a handler's statements
        if _prepare_for_handler(connection, server, dsn, own):
            with suppress(psycopg.errors.InvalidParameterValue):
                execute(connection, "session.check_client")
    return connection


async def connect_for_handler_async(dsn: str) -> AsyncHandlerSession:
    """The same for an ``async def``."""
    own = _defaults(KEEPALIVE_SETTINGS, dsn)
    with in_utc(), _translate_errors():
        connection, server = await _open_async(AsyncHandlerSession, dsn, own)
        if _prepare_for_handler(connection, server, dsn, own):
            with suppress(psycopg.errors.InvalidParameterValue):
                await connection.execute(load("session")["check_client"])
    return connection


def _prepare_for_handler(
    connection: HandlerSession | AsyncHandlerSession, server: Any, dsn: str, own: Settings
) -> bool:
    """Note what each transaction needs. Return whether the server may check that the client is
    still there, which not every operating system supports.
    """
    connection.settings = {**dsn_settings(dsn), **own} if server.is_pooled else {}
    connection.idle_timeout = server.idle_timeout
    return not server.is_pooled and connection.info.server_version >= 140_000


async def connect_async(
    dsn: str, settings: Settings, look_up: Callable[..., Awaitable[Any]]
) -> AsyncSession:
    """Open a session for an event loop, like ``connect``. Call it inside ``in_utc``.

    ``look_up`` replaces the loop's getaddrinfo, which would start a thread. Statements are prepared
    unless there is a pooler.
    """
    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[assignment,method-assign]
    own = {**_defaults(settings, dsn), **PINNED_SETTINGS}
    # those of TCP are for direct connections: a pooler's are its own business
    direct = {**_defaults(KEEPALIVE_SETTINGS, dsn), **own}
    connection, server = await _open_async(AsyncSession, dsn, direct)
    if server.is_pooled:
        connection.configure_transactions({**dsn_settings(dsn), **own})
    else:
        connection.prepare_threshold = 0
    return connection


async def _open_async(kind: type[A], dsn: str, settings: Settings) -> tuple[A, Any]:
    """Return a session with ``settings`` and the answer of ``configure``."""
    try:
        connection = await kind.connect(conninfo(dsn), **CONNECT_ARGUMENTS)
    except psycopg.OperationalError as error:
        connection = await kind.connect(_without_options(dsn, error), **CONNECT_ARGUMENTS)
    try:
        parameters = _parameters(connection, settings)
        cursor = await connection.execute(load("session")["configure"], parameters)
        return connection, await cursor.fetchone()
    except BaseException:
        await connection.close()
        raise


@contextmanager
def _opened(kind: type[T], dsn: str, settings: Settings) -> Iterator[tuple[T, Any]]:
    """Yield a session with ``settings`` and the answer of ``configure``. It is closed if the block
    raises.
    """
    with in_utc(), _translate_errors():
        try:
            connection = kind.connect(conninfo(dsn), **CONNECT_ARGUMENTS)
        except psycopg.OperationalError as error:
            connection = kind.connect(_without_options(dsn, error), **CONNECT_ARGUMENTS)
        try:
            cursor = execute(connection, "session.configure", **_parameters(connection, settings))
            yield connection, cursor.fetchone()
        except BaseException:
            connection.close()
            raise


def _without_options(dsn: str, error: psycopg.OperationalError) -> str:
    """Return the connection string for PgBouncer, which rejects options at the start of a session;
    else raise.
    """
    if "unsupported startup parameter" not in str(error):
        raise error
    return conninfo(dsn, with_options=False)


def _defaults(settings: Settings, dsn: str) -> dict[str, str]:
    """Return those of ``settings`` that the DSN does not set."""
    own = dsn_settings(dsn)
    return {name: value for name, value in settings.items() if name not in own}


def _parameters(connection: Any, settings: Settings) -> dict[str, Any]:
    return {
        "backend_pid": connection.info.backend_pid,
        "names": list(settings),
        "values": list(settings.values()),
    }


def _answer_within(connection: Session, own: Settings) -> float | None:
    """Return for how many seconds to wait for an answer. The server is asked only if the limit is
    set elsewhere.
    """
    if "statement_timeout" in own:
        limit = durations.parse(own["statement_timeout"]).total_seconds()
    else:
        [row] = execute(connection, "session.limits").fetchall()
        limit = row.statement_timeout
    return limit + ANSWER_MARGIN_SECONDS if limit else None


@contextmanager
def in_utc() -> Iterator[None]:
    """Let sessions that are opened inside start in UTC, also through PgBouncer.

    PGTZ is for the whole process: blocks of threads and coroutines may overlap in any order, and
    the last one restores it.
    """
    with _utc_lock:
        _utc.append(_utc[0] if _utc else os.environ.get("PGTZ"))
        os.environ["PGTZ"] = "UTC"
    try:
        yield
    finally:
        with _utc_lock:
            if len(_utc) > 1:
                _utc.pop()
            else:
                leave_utc()


def leave_utc() -> None:
    """Leave all blocks of ``in_utc``: also in a process that was forked inside of them."""
    if not _utc:
        return
    before = _utc[0]
    _utc.clear()
    if before is None:
        del os.environ["PGTZ"]
    else:
        os.environ["PGTZ"] = before


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise EnvironmentFailed(describe(error)) from error


def describe(error: psycopg.Error) -> str:
    """Return why no session could be opened, in one line, without the DSN."""
    return f"no connection to the database: {reason(error).removeprefix('connection failed: ')}"


def reason(error: psycopg.Error) -> str:
    """Return the error's message as one line of bounded length, without the server's excerpt of the
    statement.
    """
    lines = (error.diag.message_primary or str(error)).splitlines()
    return "; ".join(" ".join(line.split()) for line in lines if line.strip())[:MAX_REASON_CHARS]
