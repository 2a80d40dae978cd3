"""Kinds of sessions: behind a pooler they are configured for each transaction; none waits for an answer without end."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from yamlsched.errors import EnvironmentFailed

Settings = Mapping[str, str]
"""Parameters of the server, for a session or a transaction."""


def set_local(settings: Settings) -> bytes:
    """Return statements that set ``settings`` for the rest of a transaction.

    They take no snapshot: the transaction's isolation level can still be chosen after them. Its default is set for this
    transaction itself, which has begun.
    """
    settings = {
        name.replace("default_transaction_isolation", "transaction_isolation"): v for name, v in settings.items()
    }
    return "; ".join(f'set local "{name}" = {_value(name, value)}' for name, value in settings.items()).encode()


def _value(name: str, value: str) -> str:
    parts = value.split(",") if name == "search_path" else [value]
    return ", ".join("'{}'".format(part.strip().replace("'", "''")) for part in parts)


class Session(psycopg.Connection[Any]):
    """A session that gives up on a server that is silent for ``answer_within`` seconds; None: never."""

    answer_within: float | None = 65.0
    each_transaction = b""  # behind a pooler: what configures a transaction

    def configure_transactions(self, settings: Settings) -> None:
        """Set ``settings`` in each transaction, if there are any; a statement outside of one becomes a transaction."""
        if settings:
            self.each_transaction = set_local(settings)
            self.cursor_factory = PooledCursor

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for what ``gen`` waits for. Raises EnvironmentFailed, and closes the session, when that takes too long.

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
            if is_outermost and self.each_transaction:
                psycopg.Cursor(self).execute(self.each_transaction)
            yield transaction


class PooledCursor(psycopg.Cursor[Any]):
    """A cursor whose statements are never outside of a transaction."""

    def execute(self, *args: Any, **kwargs: Any) -> PooledCursor:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return super().execute(*args, **kwargs)
        with self.connection.transaction():
            return super().execute(*args, **kwargs)


class AsyncSession(psycopg.AsyncConnection[Any]):
    """The same for an event loop, where whoever waits for an answer bounds it."""

    each_transaction = b""

    def configure_transactions(self, settings: Settings) -> None:
        self.each_transaction = set_local(settings)
        self.cursor_factory = AsyncPooledCursor

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[psycopg.AsyncTransaction]:
        is_outermost = self.info.transaction_status == TransactionStatus.IDLE
        async with super().transaction(*args, **kwargs) as transaction:
            if is_outermost and self.each_transaction:
                await psycopg.AsyncCursor(self).execute(self.each_transaction)
            yield transaction


class AsyncPooledCursor(psycopg.AsyncCursor[Any]):
    """See ``PooledCursor``."""

    async def execute(self, *args: Any, **kwargs: Any) -> AsyncPooledCursor:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return await super().execute(*args, **kwargs)
        async with self.connection.transaction():
            return await super().execute(*args, **kwargs)


class HandlerSession(Session):
    """A session for a handler's own statements, which keeps what is set on its role and database."""

    transaction = psycopg.Connection.transaction  # a handler's blocks are as psycopg documents them
    idle_timeout = 0.0  # idle_in_transaction_session_timeout as it is set there, in seconds; 0: none
    settings: Settings = MappingProxyType({})  # for each transaction, behind a pooler

    def configure_transaction(self, timeout: float | None) -> None:
        """Let the server end the transaction that has begun where its client is silent for ``timeout`` seconds.

        That is the job's time limit. What is set on the role or database holds if it is less.
        """
        limits = [seconds for seconds in (timeout, self.idle_timeout) if seconds]
        settings = dict(self.settings)
        if limits:
            milliseconds = min(math.ceil(min(limits) * 1000), 2**31 - 1)
            settings["idle_in_transaction_session_timeout"] = str(milliseconds)
        # without anything to set it shows that the session is there; neither takes a snapshot
        psycopg.Cursor(self).execute(set_local(settings) or b"show transaction_isolation")
