"""Opening sessions. No state is kept in one beyond a transaction, so that PgBouncer may stand in between.

A session of the server's own is configured once, when it is opened. Behind a pooler each transaction may get another
one: there ``set local`` configures each transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg.rows import namedtuple_row

from yamlsched import durations
from yamlsched.errors import EnvironmentFailed
from yamlsched.store import hosts
from yamlsched.store.session import AsyncSession, HandlerSession, Session, Settings
from yamlsched.store.statements import load

T = TypeVar("T", bound=psycopg.Connection[Any])
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what it warns of is raised as well
CONNECTION_DEFAULTS: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds: a dead network is noticed before usual leases end
    "target_session_attrs": "read-write",  # a server in recovery cannot take runs
}
SESSION_SETTINGS: Settings = {
    "statement_timeout": "60s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",  # our statements are short: compiling one costs a second where running it costs milliseconds
}
"""The limits of a session. What the DSN says in ``options`` wins."""
PINNED_SETTINGS: Settings = {
    "search_path": "pg_catalog, pg_temp",  # a function in another schema must not take the place of a built-in one
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
}
"""What our statements rely on, whatever is set on the role, on the database or in the DSN."""
KEEPALIVE_SETTINGS: Settings = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""With these the server notices within half a minute that the client's host has vanished, and releases its locks."""
SETTING_PATTERN = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)")
"""A setting in the ``options`` of a connection string, for example ``-c statement_timeout=5s``."""
CONNECT_ARGUMENTS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "row_factory": namedtuple_row}
ANSWER_MARGIN_SECONDS = 5.0  # seconds beyond statement_timeout after which a silent server counts as gone
MIN_SECRET_CHARS = 8
"""Characters; a shorter password is too likely to be a word of some other text, and is sought in its place only."""


def conninfo(dsn: str, with_options: bool = True) -> str:
    """Return ``dsn`` with what our connections need, as far as it does not say otherwise itself."""
    given = parse_dsn(dsn)
    if "application_name" not in given and "PGAPPNAME" not in os.environ:
        given["application_name"] = "yamlsched"
    if not with_options:
        given["options"] = ""
    given["client_encoding"] = "utf8"
    return make_conninfo("", **{**CONNECTION_DEFAULTS, **hosts.in_order(given)})


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of ``dsn``. Raises EnvironmentFailed for one that is not valid."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        raise EnvironmentFailed(_dsn_error(dsn, str(error))) from error


def _dsn_error(dsn: str, said: str) -> str:
    """Return what is wrong with a DSN that libpq cannot read, without a part of it: any may be a password."""
    from difflib import get_close_matches

    if re.match(r"postgres(ql)?\+\w+://", dsn):
        return "the DSN is a SQLAlchemy URL: leave out the driver, as in postgresql://user@host:5432/name"
    if name := re.search(r'invalid (?:connection|URI query) (?:option|parameter:?) "([^"]*)"', said):
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        if matches := get_close_matches(name[1], known, n=1):
            return f'the DSN has a parameter that libpq does not know. Did you mean "{matches[0]}"?'
    return "the DSN cannot be read: write postgresql://user@host:5432/name or host=... dbname=..."


def _options(given: Mapping[str, Any]) -> str:
    return str(given.get("options") or os.environ.get("PGOPTIONS") or "")


def settings_of(dsn: str) -> dict[str, str]:
    """Return the settings in the ``options`` of ``dsn``."""
    found = SETTING_PATTERN.findall(_options(parse_dsn(dsn)))
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in found}


def seconds_to_connect(dsn: str) -> float:
    """Return within how many seconds a connection is open if any of the hosts in ``dsn`` answers in time."""
    return hosts.seconds_to_connect(parse_dsn(dsn))


def connect(dsn: str, settings: Settings = SESSION_SETTINGS) -> Session:
    """Open a session in UTC, in autocommit mode; rows come as named tuples.

    Raises EnvironmentFailed with a line for people when the server cannot be reached.
    """
    given = settings_of(dsn)
    own = {**_without(settings, given), **PINNED_SETTINGS}
    with in_utc(), _translate_errors():
        connection = _open(Session, dsn)
        with _closed_on_error(connection):
            row: Any = connection.execute(load("session")["configure"], _parameters(connection, own)).fetchone()
            connection.configure_transactions({**given, **own} if row.is_pooled else {})
            connection.answer_within = _answer_within(connection, own)
    return connection


def _answer_within(connection: Session, own: Settings) -> float | None:
    """Return for how many seconds an answer may be awaited. The server is asked only for a limit that is not ours."""
    if "statement_timeout" in own:
        limit = durations.parse(own["statement_timeout"]).total_seconds()
    else:
        limit = connection.execute(load("session")["limits"]).fetchone().statement_timeout  # type: ignore[union-attr]
    return limit + ANSWER_MARGIN_SECONDS if limit else None


def connect_for_handler(dsn: str) -> HandlerSession:
    """Open a session for a handler's own statements. Raises EnvironmentFailed when the server cannot be reached."""
    given = settings_of(dsn)
    own = _without(KEEPALIVE_SETTINGS, given)
    with in_utc(), _translate_errors():
        connection = _open(HandlerSession, dsn)
        with _closed_on_error(connection):
            row: Any = connection.execute(load("session")["configure"], _parameters(connection, own)).fetchone()
            connection.settings = {**given, **own} if row.is_pooled else {}
            connection.idle_timeout = row.idle_timeout
            connection.answer_within = None  # how long a handler's statements may take is up to its job
            if not row.is_pooled and connection.info.server_version >= 140_000:
                with suppress(psycopg.errors.InvalidParameterValue):  # not supported by every operating system
                    connection.execute(load("session")["check_client"])
    return connection


def _open(kind: type[T], dsn: str) -> T:
    try:
        connection = kind.connect(conninfo(dsn), **CONNECT_ARGUMENTS)
    except psycopg.OperationalError as error:
        if not refuses_options(error):
            raise
        connection = kind.connect(conninfo(dsn, with_options=False), **CONNECT_ARGUMENTS)
    hosts.remember(parse_dsn(dsn), connection.info)
    return connection


def _without(settings: Settings, given: Settings) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in given}


def _parameters(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], settings: Settings
) -> dict[str, Any]:
    return {"told": connection.info.backend_pid, "names": list(settings), "values": list(settings.values())}


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise EnvironmentFailed(describe(error)) from error


@contextmanager
def _closed_on_error(connection: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


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


async def connect_async(dsn: str, settings: Settings, look_up: Callable[..., Awaitable[Any]]) -> AsyncSession:
    """Like ``connect``, for an event loop, and to be called inside ``in_utc``.

    ``look_up`` takes the place of the loop's getaddrinfo, which would start a thread. Statements are prepared where a
    session is the server's own: not through PgBouncer.
    """
    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[assignment,method-assign]
    given = settings_of(dsn)
    own = {**_without(settings, given), **PINNED_SETTINGS}
    try:
        connection = await AsyncSession.connect(conninfo(dsn), **CONNECT_ARGUMENTS)
    except psycopg.OperationalError as error:
        if not refuses_options(error):
            raise
        connection = await AsyncSession.connect(conninfo(dsn, with_options=False), **CONNECT_ARGUMENTS)
    try:
        hosts.remember(parse_dsn(dsn), connection.info)
        cursor = await connection.execute(load("session")["configure"], _parameters(connection, own))
        row: Any = await cursor.fetchone()
    except BaseException:
        await connection.close()
        raise
    if row.is_pooled:
        connection.configure_transactions({**given, **own})
    else:
        connection.prepare_threshold = 0
    return connection


PASSWORD_PATTERN = re.compile(
    r"(://[^/\s:@]*:)(?:[^@\s:]|:(?!//))+(?=@)|(\bpassword\s*=\s*)(?:'[^']*'|[^\s'\"&]+)", re.IGNORECASE
)
"""What stands where a password does, in an address or in a connection string.

The search takes time in proportion to the text, whatever a handler printed: no attempt at a match reads on beyond the
place where the next one may start.
"""


def _masked(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}***"


def redactor(dsn: str) -> Callable[[str], str]:
    """Return a function that takes the DSN, its password, and what looks like another one's, out of a text.

    >>> redactor("postgresql://app:s3cret!!@db/app")("bad password s3cret!! for postgresql://app:s3cret!!@db/app")
    'bad password *** for ***'
    >>> redactor("")("no answer from amqp://bob:hunter2@mq:5672/ with password=hunter2")
    'no answer from amqp://bob:***@mq:5672/ with password=***'
    """
    try:
        password = str(conninfo_to_dict(dsn).get("password") or os.environ.get("PGPASSWORD") or "")
    except psycopg.ProgrammingError:
        password = ""
    needles = {dsn} if "password" in dsn or "@" in dsn else set()
    for form in {password, quote(password), quote(password, safe="")} - {""}:
        needles |= {form} if len(form) >= MIN_SECRET_CHARS else {f":{form}@", f"password={form}"}
    own = re.compile("|".join(re.escape(needle) for needle in sorted(needles, key=len, reverse=True)) or "(?!)")
    return lambda text: PASSWORD_PATTERN.sub(_masked, own.sub("***", text))
