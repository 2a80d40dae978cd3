"""Opening sessions. No state is kept in one beyond a transaction, so that PgBouncer may stand in between."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
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


SHORTEST_SECRET = 8
"""Characters; a shorter password is too likely to be a word of some other text, and is sought in its place only."""


def conninfo(dsn: str, session: str = SESSION) -> str:
    """Return ``dsn`` with what our sessions need, as far as it does not say otherwise itself."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise EnvironmentFailed(_dsn_fault(dsn, str(error))) from error
    if "application_name" not in given and "PGAPPNAME" not in os.environ:
        given["application_name"] = "yamlsched"
    if session:
        given["options"] = f"{session} {given.get('options', '')}".strip()
    return make_conninfo("", **{**DEFAULTS, **given})


def _dsn_fault(dsn: str, said: str) -> str:
    """Return what is wrong with a DSN that libpq cannot read, without a part of it: any may be a password."""
    from difflib import get_close_matches

    if re.match(r"postgres(ql)?\+\w+://", dsn):
        return "the DSN is one of SQLAlchemy: leave out the driver, as in postgresql://user@host:5432/name"
    if name := re.search(r'invalid (?:connection|URI query) (?:option|parameter:?) "([^"]*)"', said):
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        if near := get_close_matches(name[1], known, n=1):
            return f'the DSN has a parameter that libpq does not know. Did you mean "{near[0]}"?'
    return "the DSN cannot be read: write postgresql://user@host:5432/name or host=... dbname=..."


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


def describe(error: psycopg.Error) -> str:
    """Return why no session could be opened, in one line, without the DSN."""
    return f"no connection to the database: {reason(error).removeprefix('connection failed: ')}"


def reason(error: psycopg.Error) -> str:
    """Return the error's text as one bounded line."""
    return " ".join(str(error).split())[:500]


@contextmanager
def in_utc() -> Iterator[str | None]:
    """Let sessions opened inside start in UTC, also through PgBouncer. Yields PGTZ as it was before."""
    before = os.environ.get("PGTZ")
    os.environ["PGTZ"] = "UTC"
    try:
        yield before
    finally:
        if before is None:
            del os.environ["PGTZ"]
        else:
            os.environ["PGTZ"] = before


async def connect_async(dsn: str, session: str, look_up: Callable[..., Awaitable[Any]]) -> psycopg.AsyncConnection[Any]:
    """Like ``connect``, for an event loop, and to be called inside ``in_utc``.

    ``look_up`` takes the place of the loop's getaddrinfo, which would start a thread.
    """
    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[assignment,method-assign]
    try:
        return await _open_async(conninfo(dsn, session))
    except psycopg.OperationalError as error:
        if not refuses_options(error):
            raise
    return await _open_async(conninfo(dsn, session=""))


async def _open_async(info: str) -> psycopg.AsyncConnection[Any]:
    """Open a session. Its statements are prepared where a session is the server's own: not through PgBouncer."""
    connection = await psycopg.AsyncConnection.connect(
        info, autocommit=True, prepare_threshold=None, row_factory=namedtuple_row
    )
    cursor = await connection.execute("select pg_backend_pid() as pid")
    row: Any = await cursor.fetchone()
    if row.pid == connection.info.backend_pid:
        connection.prepare_threshold = 0
    return connection


PASSWORDS = re.compile(r"(://[^/\s:@]*:)[^@\s]+(?=@)|(\bpassword\s*=\s*)(?:'[^']*'|[^\s'\"&]+)", re.IGNORECASE)
"""What stands where a password does, in an address or in a connection string."""


def _masked(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}***"


def concealer(dsn: str) -> Callable[[str], str]:
    """Return a function that takes the DSN, its password, and what looks like another one's, out of a text.

    >>> concealer("postgresql://app:s3cret!!@db/app")("bad password s3cret!! for postgresql://app:s3cret!!@db/app")
    'bad password *** for ***'
    >>> concealer("")("no answer from amqp://bob:hunter2@mq:5672/ with password=hunter2")
    'no answer from amqp://bob:***@mq:5672/ with password=***'
    """
    try:
        password = str(conninfo_to_dict(dsn).get("password") or os.environ.get("PGPASSWORD") or "")
    except psycopg.ProgrammingError:
        password = ""
    needles = {dsn} if "password" in dsn or "@" in dsn else set()
    for form in {password, quote(password), quote(password, safe="")} - {""}:
        needles |= {form} if len(form) >= SHORTEST_SECRET else {f":{form}@", f"password={form}"}
    own = re.compile("|".join(re.escape(needle) for needle in sorted(needles, key=len, reverse=True)) or "(?!)")
    return lambda text: PASSWORDS.sub(_masked, own.sub("***", text))
