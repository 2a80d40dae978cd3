"""The worker's two sessions: one claims and renews leases, the other writes outcomes.

They are opened when they are first needed, and anew after a failure.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from yamlsched import log, store
from yamlsched.store.connection import describe

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between attempts to connect


class Session:
    """A session that is there when it is asked for."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> psycopg.AsyncConnection[Any]:
        """Return the connection; open it, for as long as it takes, where there is none or it is broken."""
        async with self._opening:
            wait = FIRST_WAIT
            while self._connection is None or self._connection.closed:
                try:
                    self._connection = await store.connect_async(self._dsn)
                except psycopg.OperationalError as error:
                    if wait == FIRST_WAIT:
                        log.warning("database.away", error=describe(error))
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)
            return self._connection

    async def drop(self) -> None:
        """Close the connection, after an error that says nothing of its state."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            await connection.close()

    @property
    def socket(self) -> int | None:
        """The descriptor of its socket: a forked child must not keep the session alive."""
        if self._connection is None or self._connection.closed:
            return None
        return self._connection.fileno()
