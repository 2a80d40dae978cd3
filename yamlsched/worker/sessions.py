"""The worker's sessions. Each is opened when it is first needed, and again after a failure.

There are three, so that nothing waits for anything else: one claims, one writes outcomes, one
renews leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from yamlsched import db, log
from yamlsched.db.connection import describe, reason
from yamlsched.db.query import AsyncConnection, execute
from yamlsched.db.session import Settings
from yamlsched.errors import EnvironmentFailed
from yamlsched.worker import clock, forking


async def run_in_helper(do: Callable[[], T], keep: Sequence[int] = ()) -> T:
    """Return what ``do`` returns in a forked process, or raise what it raises there. If cancelled,
    kill the process.

    Raises EnvironmentFailed when it cannot be started, or dies without a result. Of the worker's
    descriptors it has only stdout and stderr, and those to ``keep``.
    """

    def answer(parent: int, pipes: list[forking.Pipe]) -> None:
        forking.detach(parent, keep=(0, 1, 2, pipes[0][1], *keep))
        sys.stderr = sys.__stderr__  # the worker's own replacement belongs to its event loop
        _answer(pipes[0][1], do)

    pid, [(reading, writing)] = forking.fork("helper", 1, answer)
    os.close(writing)
    stream = asyncio.StreamReader()
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
        )
        try:
            content = await stream.read()
        finally:
            transport.close()
    finally:
        # it has closed its pipe, or is not needed: waiting for its exit takes no time
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    try:
        value, error = pickle.loads(content)
    except (EOFError, pickle.UnpicklingError) as failure:
        raise EnvironmentFailed("the helper process died without a result") from failure
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _answer(writing: int, do: Callable[[], object]) -> None:
    try:
        content = pickle.dumps((do(), None))
    except Exception as error:
        try:
            content = pickle.dumps((None, error))
            pickle.loads(content)
        except Exception:
            content = pickle.dumps((None, EnvironmentFailed(f"{type(error).__name__}: {error}")))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(content)
    os._exit(0)


T = TypeVar("T")
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.1, 2.0  # between attempts to connect
WAKE_INTERVAL_SECONDS = 0.05  # between reports of notifications
OPEN_TIMEOUT_SECONDS = 30.0  # for all hosts of the DSN together
SLOW_CONNECT_SECONDS = 5.0  # after which a connection attempt counts as unanswered
NO_ANSWER = "no answer to a connection attempt"
# SQLSTATE classes and codes after which the session is closed: the server is shutting down, is
# full, or is a standby; or a migration has changed the columns of a prepared statement
FATAL = ("08", "53", "57P", "25006", "XX", "0A000")
# A prepared statement is planned once, perhaps while the table is empty. A plan that reads the
# whole table, or sorts what an index has in order, would be slow later.
WORKER_SETTINGS = {
    "statement_timeout": "15s",
    "idle_in_transaction_session_timeout": "15s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}


class Unanswered(Exception):
    """The server did not answer. If it ``was_asked``, it may have done what it was asked."""

    def __init__(self, was_asked: bool) -> None:
        self.was_asked = was_asked


class Database:
    """Whether the server answers, as all sessions of a worker found."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.away_since: float | None = None
        self.reason = ""
        self.is_cut = False  # by the worker, which ends: no failure

    def failed(self, why: str) -> None:
        """Note that there was no answer; log it the first time."""
        if self.is_cut:
            return
        self.reason = why
        if self.away_since is None:
            self.away_since = clock.now()
            log.warning("database.away", error=why)

    def answered(self) -> None:
        """Note that there was an answer."""
        if self.away_since is not None:
            log.warning("database.back", after=timedelta(seconds=clock.now() - self.away_since))
            self.away_since = None


class WorkerSession:
    """A session that opens when it is used.

    ``settings`` are those of the server. With ``on_notify`` it listens, and calls it when runs were
    enqueued or synced, in any namespace, and when notifications may be missing.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        on_notify: Callable[[], None] | None = None,
    ) -> None:
        self._database, self._settings, self._on_notify = database, settings, on_notify
        self._connection: AsyncConnection | None = None
        self._wait = 0.0
        self._opening = asyncio.Lock()
        self._watched: int | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._received_at = -WAKE_INTERVAL_SECONDS
        self._is_busy = False

    async def run(self, do: Callable[[AsyncConnection], Awaitable[T]], timeout: float) -> T:
        """Return what ``do`` returns for the connection.

        Raises Unanswered when the server cannot be reached, or does not answer within ``timeout``
        seconds; psycopg's errors for what it refuses: then nothing was done, and the next use may
        open a new session.
        """
        self.unwatch()
        connection = await self._get()
        sent_at = clock.now()
        timer = asyncio.get_running_loop().call_later(timeout, self.cut)
        self._is_busy = True
        try:
            answer = await do(connection)
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg.InternalError,
            psycopg.NotSupportedError,
        ) as error:
            if connection.closed or error.sqlstate is None or error.sqlstate.startswith(FATAL):
                await self.drop()
                is_late = clock.now() - sent_at >= timeout
                why = f"no answer within {timeout:.1f} s" if is_late else reason(error)
                self._database.failed(why)
                raise Unanswered(was_asked=True) from error
            if connection.prepare_threshold is not None:
                # After an error psycopg and the server may disagree on what is prepared, and
                # psycopg does not notice every "deallocate all": a new session is right in each
                # case.
                await self.drop()
            raise
        except BaseException:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await self.drop()  # interrupted
            raise
        finally:
            self._is_busy = False
            timer.cancel()
        self._database.answered()
        return answer

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    async def open(self) -> bool:
        """Open the session if it is not open; False if the server cannot be reached."""
        with contextlib.suppress(Unanswered):
            await self._get()
        return self.is_open

    async def _get(self) -> AsyncConnection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                self._connection = await self._open()
            return self._connection

    async def _open(self) -> AsyncConnection:
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(max(2 * self._wait, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
        timer = asyncio.get_running_loop().call_later(
            SLOW_CONNECT_SECONDS, self._database.failed, NO_ANSWER
        )
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_SECONDS):
                connection = await db.connect_async(self._database.dsn, self._settings, look_up)
                self._connection = connection
                if (on_notify := self._on_notify) is not None:
                    connection.add_notify_handler(lambda notification: on_notify())
                    await execute(connection, "runs.listen")
        except (psycopg.Error, EnvironmentFailed, TimeoutError) as error:
            await self.drop()
            self._database.failed(
                describe(error) if isinstance(error, psycopg.Error) else NO_ANSWER
            )
            raise Unanswered(was_asked=False) from error
        finally:
            timer.cancel()
        self._wait = 0.0
        return connection

    async def close(self) -> None:
        """Close the connection until the session is used again."""
        self.unwatch()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def drop(self) -> None:
        """Close the connection, after an error that leaves its state unknown."""
        if self._connection is not None:
            self._wait = max(self._wait, MIN_WAIT_SECONDS)
        await self.close()

    def cut(self) -> bool:
        """Cut the connection if an answer is awaited, so that its awaiter learns at once that there
        will be none.
        """
        if not self._is_busy or self._connection is None or self._connection.closed:
            return False
        with (
            socket.socket(fileno=os.dup(self._connection.fileno())) as handle,
            contextlib.suppress(OSError),
        ):
            handle.shutdown(socket.SHUT_RDWR)
        return True

    def watch(self) -> None:
        """Receive notifications while the session has nothing to do: at once if the last one led to
        runs, else once in each interval, because any login of the database can send them.
        """
        if self.is_open and self._connection is not None and self._watched is None:
            loop, self._watched = asyncio.get_running_loop(), self._connection.fileno()
            at = self._received_at + WAKE_INTERVAL_SECONDS
            self._watch = loop.call_at(at, loop.add_reader, self._watched, self._receive)

    def note_runs(self) -> None:
        """Note that there were runs to claim."""
        self._received_at = -WAKE_INTERVAL_SECONDS

    def unwatch(self) -> None:
        """End ``watch``; each use of the session does."""
        if self._watched is not None and self._watch is not None:
            self._watch.cancel()
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _receive(self) -> None:
        assert self._connection is not None
        assert self._on_notify is not None
        self.unwatch()
        self._received_at = asyncio.get_running_loop().time()
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies():
                self._on_notify()
            self.watch()
        except psycopg.OperationalError as error:
            self._connection.pgconn.finish()  # the next use opens another
            self._database.failed(reason(error))
            self._on_notify()


class WorkerSessions:
    """The sessions of a worker: one claims, one writes outcomes, one renews leases."""

    def __init__(self, database: Database, on_notify: Callable[[], None] | None) -> None:
        self.claim = WorkerSession(database, WORKER_SETTINGS, on_notify)
        self.write = WorkerSession(database, {**WORKER_SETTINGS, "lock_timeout": "1s"})
        self.lease = WorkerSession(database, WORKER_SETTINGS)
        self._all = (self.lease, self.write, self.claim)

    async def open(self) -> bool:
        """Open those that claim, write and renew, before anything is started and children open
        theirs.

        The server may have a limit: a claim without them could neither be kept nor finished. False
        if one did not open.
        """
        if all(session.is_open for session in self._all):
            return True
        return all(await asyncio.gather(*(session.open() for session in self._all)))

    async def close_unneeded(self) -> None:
        """Close those that an idle worker does not need: it claims with one."""
        await self.write.close()
        await self.lease.close()

    def cut(self) -> bool:
        """Cut those that await an answer; return whether there was one."""
        return sum(session.cut() for session in self._all) > 0

    async def drop(self) -> None:
        for session in self._all:
            await session.drop()


async def look_up(host: Any, port: Any, **hints: Any) -> Any:
    """Look up a host's addresses in a helper process: it may take long, and a worker, which forks,
    has no threads.
    """
    return await run_in_helper(lambda: socket.getaddrinfo(host, port, **hints))
