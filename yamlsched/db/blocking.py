"""Functions that are written for a worker's session, called with a session that blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row

Result = TypeVar("Result")


class Session:
    """A session with those methods of a worker's that such functions call: none of
    them ever waits.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._cursor = connection.cursor(row_factory=namedtuple_row)

    async def execute(self, *statement: Any) -> Session:
        self._cursor.execute(*statement)
        return self

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.connection.transaction():
            yield


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("it waited")
