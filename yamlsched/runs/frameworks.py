"""The psycopg connections of Django and SQLAlchemy. Neither is imported: who passes their objects
has imported them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import psycopg

from yamlsched.errors import Refused


class DjangoConnection(Protocol):
    """``django.db.connection``."""

    def ensure_connection(self) -> None: ...


class SqlalchemyConnection(Protocol):
    """A Session or a Connection."""

    def rollback(self) -> None: ...


class SqlalchemyAsyncSession(Protocol):
    @property
    def sync_session(self) -> Any: ...


class SqlalchemyAsyncConnection(Protocol):
    @property
    def sync_connection(self) -> Any: ...


Sync: TypeAlias = psycopg.Connection[Any] | DjangoConnection | SqlalchemyConnection
Async: TypeAlias = psycopg.AsyncConnection[Any] | SqlalchemyAsyncSession | SqlalchemyAsyncConnection


def driver_connection(connection: Any) -> Any:
    """Return the psycopg connection of Django's ``connection``, or of a session or connection of
    SQLAlchemy.

    It is in the transaction that Django or SQLAlchemy has open; SQLAlchemy begins one if there is
    none. What is asynchronous has an awaitable of its connection. Raises Refused for a connection
    of another driver.
    """
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return connection
    if _is_from("django", connection) and hasattr(connection, "ensure_connection"):
        connection.ensure_connection()
        return _psycopg(connection.connection)
    if _is_from("sqlalchemy", connection):
        if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
            return _async_sqlalchemy_connection(connection)
        return _psycopg(_sqlalchemy_connection(connection))
    return _psycopg(connection)


def _is_from(package: str, connection: object) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(connection).__mro__)


def _sqlalchemy_connection(connection: Any) -> Any:
    """Return the driver's connection of a Session or a Connection."""
    if not hasattr(connection, "connection"):
        return connection  # an engine, or what else SQLAlchemy has
    if not hasattr(connection, "exec_driver_sql"):
        connection = connection.connection()  # of a session: its transaction has begun
    elif not connection.in_transaction():
        connection.begin()  # as with its first statement: otherwise commit() would do nothing
    return connection.connection.driver_connection


async def _async_sqlalchemy_connection(connection: Any) -> Any:
    """Return the driver's connection of an AsyncSession or an AsyncConnection."""
    if hasattr(connection, "sync_session"):
        connection = await connection.connection()
    elif not connection.in_transaction():
        await connection.begin()
    return _psycopg((await connection.get_raw_connection()).driver_connection)


def _psycopg(connection: Any) -> Any:
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return connection
    kind = f"{type(connection).__module__}.{type(connection).__name__}"
    raise Refused(
        f"{kind} is not a connection of psycopg 3: pass one, or a session or connection of Django"
        " or SQLAlchemy with that driver (django.db.backends.postgresql, postgresql+psycopg). With"
        " another driver, execute select * from yamlsched.enqueue('a_job', '{...}')"
    )


def close_stale_connections() -> None:
    """Close the connections of Django that are broken or older than CONN_MAX_AGE, as Django does
    around requests.
    """
    if (django := sys.modules.get("django.db")) is not None:
        with suppress(Exception):  # what is wrong with a connection is seen by who uses it
            django.close_old_connections()
