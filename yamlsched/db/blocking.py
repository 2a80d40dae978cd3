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

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session, self._cursor = session, session.cursor(row_factory=namedtuple_row)

    async def execute(self, *statement: Any) -> Session:
        self._cursor.execute(*statement)
        return self

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    @property
    def closed(self) -> bool:
        return self._session.closed

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._session.transaction():
            yield


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("it waited")
