"""Reading with two sessions at once. The server executes the statements of both on cores of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

import psycopg

from yamlsched.errors import EnvironmentFailed
from yamlsched.store.session import Session

T = TypeVar("T")
Connect: TypeAlias = Callable[[], psycopg.Connection[Any]]


def start(
    connection: psycopg.Connection[Any], connect: Connect | None, read: Callable[[psycopg.Connection[Any]], T]
) -> Callable[[], T]:
    """Start ``read`` in a thread with a session that ``connect`` opens, and return a function that returns its result.

    Without ``connect``, behind a pooler, or if the server has no session left, that function calls ``read`` with
    ``connection``.
    """
    if connect is None or (isinstance(connection, Session) and connection.is_pooled):
        return partial(read, connection)

    def read_alone() -> T:
        with connect() as other:
            return read(other)

    pool = ThreadPoolExecutor(1)
    reading = pool.submit(read_alone)
    pool.shutdown(wait=False)

    def result() -> T:
        try:
            return reading.result()
        except EnvironmentFailed:
            return read(connection)

    return result
