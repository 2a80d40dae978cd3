"""Kinds of sessions. Behind a pooler they are configured for each transaction, and none waits
forever for an answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from yamlsched.errors import EnvironmentFailed

Settings: TypeAlias = Mapping[str, str]
"""Server settings, for a session or a transaction."""


def set_local(settings: Settings) -> bytes:
    """Return statements that apply ``settings`` for the rest of a transaction.

    They take no snapshot, so the isolation level can still be chosen after them. The default
    isolation level is applied to this transaction itself, which has started already.
    """
    statements = []
    for name, value in settings.items():
        parts = value.split(",") if name == "search_path" else [value]
        quoted = ", ".join("'{}'".format(part.strip().replace("'", "''")) for part in parts)
        name = name.replace("default_transaction_isolation", "transaction_isolation")
        statements.append(f'set local "{name}" = {quoted}')
    return "; ".join(statements).encode()


class Session(psycopg.Connection[Any]):
    """A session that gives up on a server that does not answer for ``answer_within`` seconds; None:
    never.
    """

    answer_within: float | None = 65.0
    transaction_setup = b""  # behind a pooler: the statements that configure a transaction

    def configure_transactions(self, settings: Settings) -> None:
        """Apply ``settings``, if any, in each transaction; a statement outside of one becomes a
        transaction.
        """
        if settings:
            self.transaction_setup = set_local(settings)
            self.cursor_factory = PooledCursor

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for ``gen``. Raises EnvironmentFailed, and closes the session, if that takes too
        long.

        A pooler keeps the network connection alive while the server behind it is silent.
        """
        if self.answer_within is not None:
            gen = self._bounded(gen, self.answer_within)
        return super().wait(gen, *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
        end = time.monotonic() + seconds
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise EnvironmentFailed(f"the database did not answer within {seconds:.0f} s")
                awaited = gen.send(ready)
        except StopIteration as stop:
            return stop.value

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[psycopg.Transaction]:
        is_outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(*args, **kwargs) as transaction:
            if is_outermost and self.transaction_setup:
                psycopg.Cursor(self).execute(self.transaction_setup)
            yield transaction


class PooledCursor(psycopg.Cursor[Any]):
    """A cursor that executes every statement inside a transaction."""

    def execute(self, *args: Any, **kwargs: Any) -> PooledCursor:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return super().execute(*args, **kwargs)
        with self.connection.transaction():
            return super().execute(*args, **kwargs)


class AsyncSession(psycopg.AsyncConnection[Any]):
    """The same for an event loop. The caller bounds the wait for an answer."""

    transaction_setup = b""

    def configure_transactions(self, settings: Settings) -> None:
        self.transaction_setup = set_local(settings)
        self.cursor_factory = AsyncPooledCursor

    @asynccontextmanager
    async def transaction(
        self, *args: Any, **kwargs: Any
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        is_outermost = self.info.transaction_status == TransactionStatus.IDLE
        async with super().transaction(*args, **kwargs) as transaction:
            if is_outermost and self.transaction_setup:
                await psycopg.AsyncCursor(self).execute(self.transaction_setup)
            yield transaction


class AsyncPooledCursor(psycopg.AsyncCursor[Any]):
    """See ``PooledCursor``."""

    async def execute(self, *args: Any, **kwargs: Any) -> AsyncPooledCursor:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return await super().execute(*args, **kwargs)
        async with self.connection.transaction():
            return await super().execute(*args, **kwargs)


class HandlerSession(Session):
    """A session for a handler's own statements. It keeps the settings of its role and database."""

    # a handler's blocks behave as psycopg documents them
    transaction = psycopg.Connection.transaction
    # idle_in_transaction_session_timeout of the role or database, in seconds; 0: none
    idle_timeout = 0.0
    settings: Settings = MappingProxyType({})  # behind a pooler: for each transaction

    def configure_transaction(self, timeout: float | None) -> None:
        """Let the server end the current transaction if its client is silent for ``timeout``
        seconds, the job's limit.

        A lower limit of the role or database takes precedence.
        """
        psycopg.Cursor(self).execute(_transaction_setup(self, timeout))


class AsyncHandlerSession(psycopg.AsyncConnection[Any]):
    """The same for an ``async def``."""

    idle_timeout = 0.0
    settings: Settings = MappingProxyType({})

    async def configure_transaction(self, timeout: float | None) -> None:
        """See ``HandlerSession.configure_transaction``."""
        await psycopg.AsyncCursor(self).execute(_transaction_setup(self, timeout))


def _transaction_setup(
    session: HandlerSession | AsyncHandlerSession, timeout: float | None
) -> bytes:
    limits = [seconds for seconds in (timeout, session.idle_timeout) if seconds]
    # At a higher level, the default of some databases, the success could not be written once the
    # lease was renewed. None of these statements takes a snapshot, so a handler can still choose
    # its own level.
    settings = {**session.settings, "transaction_isolation": "read committed"}
    if limits:
        milliseconds = min(math.ceil(min(limits) * 1000), 2**31 - 1)
        settings["idle_in_transaction_session_timeout"] = str(milliseconds)
    return set_local(settings)
