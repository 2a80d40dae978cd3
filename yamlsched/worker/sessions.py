"""The worker's sessions. Each is opened when it is first needed, and anew after a failure.

There are three, so that nothing waits behind anything else: one claims, one writes outcomes, one renews leases. A
fourth is there while a large fan-out is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

from yamlsched import log, store
from yamlsched.errors import EnvironmentFailed
from yamlsched.store.connection import describe, reason
from yamlsched.store.dsn import seconds_to_connect
from yamlsched.store.session import Settings
from yamlsched.worker import clock
from yamlsched.worker.helper_process import run_in_helper

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds between attempts to connect
SLOW = 2.0  # seconds after which a connection that is not there yet counts as news
# SQLSTATE classes and codes after which the session is given up: the server is going away, is full, or is a standby; or
# a migration has changed what a prepared statement answers with
LEAVE = ("08", "53", "57P", "25006", "XX", "0A000")


class Unanswered(Exception):
    """The server did not answer. Where it ``was_asked``, it is not known whether it did what it was asked."""

    def __init__(self, was_asked: bool) -> None:
        self.was_asked = was_asked


class Database:
    """What all sessions know of the server: whether it is there."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.away_since: float | None = None
        self.reason = ""

    def failed(self, why: str) -> None:
        """Note that there was no answer; say so when that is news."""
        self.reason = why
        if self.away_since is None:
            self.away_since = clock.now()
            log.warning("database.away", error=why)

    def answered(self) -> None:
        """Note that there was an answer."""
        if self.away_since is not None:
            log.warning("database.back", after=f"{clock.now() - self.away_since:.1f}s")
            self.away_since = None


class Session:
    """A session that is there when it is asked for.

    ``settings`` are of the server, for this session; ``on_open`` is called with each new connection, ``on_news`` with
    the payloads of notifications: without any when the session has ended while it was being watched.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        on_open: Callable[[Connection], Awaitable[None]] | None = None,
        on_news: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._database, self._settings, self._on_open, self._on_news = database, settings, on_open, on_news
        self._connection: Connection | None = None
        self._wait = 0.0
        self._opening = asyncio.Lock()
        self._watched: int | None = None
        self._is_busy = False

    async def run(self, do: Callable[[Connection], Awaitable[T]], within: float) -> T:
        """Return what ``do`` makes of the connection.

        Raises Unanswered when the server cannot be reached, or does not answer ``within`` so many seconds; psycopg's
        errors for what it refuses: then nothing was done, and the next use may open a new session.
        """
        self.unwatch()
        connection = await self._get()
        timer = asyncio.get_running_loop().call_later(within, self.cut)
        self._is_busy = True
        try:
            answer = await do(connection)
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg.InternalError,
            psycopg.NotSupportedError,
        ) as error:
            if connection.closed or error.sqlstate is None or error.sqlstate.startswith(LEAVE):
                await self.drop()
                self._database.failed(reason(error))
                raise Unanswered(was_asked=True) from error
            if connection.prepare_threshold is not None:
                # After an error psycopg and the server may disagree on what is prepared, and psycopg does not notice
                # every "deallocate all": a new session is right in each case.
                await self.drop()
            raise
        except BaseException:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await self.drop()  # left in the middle
            raise
        finally:
            self._is_busy = False
            timer.cancel()
        self._database.answered()
        return answer

    async def open(self) -> None:
        """Open the session if it is not. Raises Unanswered when the server cannot be reached."""
        await self._get()

    async def _get(self) -> Connection:
        async with self._opening:
            return await self._opened()

    async def _opened(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(max(2 * self._wait, FIRST_WAIT), LONGEST_WAIT)
        news = asyncio.get_running_loop().call_later(SLOW, self._database.failed, "no answer to a connection attempt")
        try:
            async with asyncio.timeout(seconds_to_connect(self._database.dsn)):
                self._connection = await store.connect_async(self._database.dsn, self._settings, look_up)
                if self._on_open is not None and self._on_news is not None:
                    on_news = self._on_news
                    self._connection.add_notify_handler(lambda notification: on_news([notification.payload]))
                    await self._on_open(self._connection)
        except (psycopg.Error, EnvironmentFailed, TimeoutError) as error:
            await self.drop()
            self._database.failed(
                describe(error) if isinstance(error, psycopg.Error) else "no answer to a connection attempt"
            )
            raise Unanswered(was_asked=False) from error
        finally:
            news.cancel()
        self._wait = 0.0
        return self._connection

    async def drop(self) -> None:
        """Close the connection, after an error that says nothing of its state."""
        self.unwatch()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._wait = max(self._wait, FIRST_WAIT)
            await connection.close()

    def cut(self) -> bool:
        """Cut the connection if an answer is awaited, so that whoever waits hears at once that there will be none."""
        if not self._is_busy or self._connection is None or self._connection.closed:
            return False
        with socket.socket(fileno=os.dup(self._connection.fileno())) as handle, contextlib.suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)
        return True

    def watch(self) -> None:
        """Listen while the session has nothing to do."""
        if self._connection is not None and not self._connection.closed and self._watched is None:
            self._watched = self._connection.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._hear)

    def unwatch(self) -> None:
        """End ``watch``; each use of the session does."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _hear(self) -> None:
        assert self._connection is not None
        assert self._on_news is not None
        payloads = []
        try:
            self._connection.pgconn.consume_input()
            while notification := self._connection.pgconn.notifies():
                payloads.append(notification.extra.decode("utf-8", "replace"))
            if not payloads:
                return
        except psycopg.OperationalError as error:
            self.unwatch()  # the next use finds it broken, and opens another
            self._connection.pgconn.finish()
            self._database.failed(reason(error))
        self._on_news(payloads)


async def look_up(host: Any, port: Any, **hints: Any) -> Any:
    """Look up a host's addresses in a process of its own: that may take long, and who forks must have no threads."""
    return await run_in_helper(lambda: socket.getaddrinfo(host, port, **hints))
