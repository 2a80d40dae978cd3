"""Opening sessions. No state is kept in one beyond a transaction, so that PgBouncer may stand in between."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import namedtuple_row

from yamlsched.errors import EnvironmentFailed

DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds: a dead network is noticed before usual leases end
    "target_session_attrs": "read-write",  # a server in recovery cannot take runs
}
# our statements are short: compiling one (jit) costs a second where running it costs milliseconds
SESSION = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s -c jit=off"


def conninfo(dsn: str, session: str = SESSION) -> str:
    """Return ``dsn`` with what our sessions need, as far as it does not say otherwise itself."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        # the text may hold a password: it is not repeated
        raise EnvironmentFailed(
            "the DSN cannot be read: write postgresql://user@host:5432/name or host=... dbname=..."
        ) from error
    if "application_name" not in given and "PGAPPNAME" not in os.environ:
        given["application_name"] = "yamlsched"
    if session:
        given["options"] = f"{session} {given.get('options', '')}".strip()
    return make_conninfo("", **{**DEFAULTS, **given})


def connect(dsn: str, session: str = SESSION) -> psycopg.Connection[Any]:
    """Open a session in UTC, in autocommit mode; rows come as named tuples. ``session`` are options of the server.

    Raises EnvironmentFailed with a line for people when the server cannot be reached.
    """
    with in_utc():
        try:
            return _open(conninfo(dsn, session))
        except psycopg.OperationalError as error:
            if not refuses_options(error):
                raise EnvironmentFailed(describe(error)) from error
        try:
            return _open(conninfo(dsn, session=""))
        except psycopg.OperationalError as error:
            raise EnvironmentFailed(describe(error)) from error


def _open(info: str) -> psycopg.Connection[Any]:
    return psycopg.connect(info, autocommit=True, prepare_threshold=None, row_factory=namedtuple_row)


def refuses_options(error: psycopg.OperationalError) -> bool:
    """Return whether it is PgBouncer that speaks, which takes no options at the start of a session."""
    return "unsupported startup parameter" in str(error)


def describe(error: psycopg.OperationalError) -> str:
    """Return why no session could be opened, in one line, without the DSN."""
    reason = " ".join(str(error).split()).removeprefix("connection failed: ")
    return f"no connection to the database: {reason}"


@contextmanager
def in_utc() -> Iterator[None]:
    """Let sessions opened inside start in UTC, also through PgBouncer; handlers' own sessions keep their zone."""
    before = os.environ.get("PGTZ")
    os.environ["PGTZ"] = "UTC"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PGTZ"]
        else:
            os.environ["PGTZ"] = before


async def connect_async(dsn: str) -> psycopg.AsyncConnection[Any]:
    """Like ``connect``, for an event loop. Names are looked up without a thread: the caller may fork."""
    loop = asyncio.get_running_loop()

    async def look_up(host: Any, port: Any, **hints: Any) -> Any:
        return socket.getaddrinfo(host, port, **hints)

    loop.getaddrinfo = look_up  # type: ignore[method-assign]
    with in_utc():
        try:
            return await _open_async(conninfo(dsn))
        except psycopg.OperationalError as error:
            if not refuses_options(error):
                raise
        return await _open_async(conninfo(dsn, session=""))


async def _open_async(info: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(
        info, autocommit=True, prepare_threshold=None, row_factory=namedtuple_row
    )
