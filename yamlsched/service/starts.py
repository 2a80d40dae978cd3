"""Starting workers: ``start_rule`` decides how many, and ``start_commands`` runs the commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import psycopg

from yamlsched import db, log
from yamlsched.db.query import Connection, execute, fetch
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule.job import Mode, Queue
from yamlsched.service.host import default_concurrency
from yamlsched.service.start_commands import StartContext, find_program, run_command
from yamlsched.service.start_rule import (
    Decision,
    QueueLoad,
    QueueStart,
    StartState,
    WorkerRow,
    decide,
)
from yamlsched.service.steps import failure
from yamlsched.service.workers import DEFAULT_ASYNC_CONCURRENCY
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.worker import forking
from yamlsched.worker.sessions import run_in_helper
from yamlsched.worker.worker import Worker

INTERVAL_SECONDS = 1.0  # between decisions of a loop
STOP_SECONDS = 2.0  # that a loop which ends leaves to decisions
RETRY_SECONDS = 5.0  # after the database did not answer
MAX_TRIES = 3  # to report commands that have failed, once there are no more decisions
MIN_COUNTED = 1_000  # runs of each level that are counted: the first ones may wait for a limit
MAX_COMMANDS = 1_000  # that run side by side
SESSION = {**db.connection.SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "2s"}


def queue_starts(schedule: ScheduleFile, synced: SyncResult) -> tuple[QueueStart, ...]:
    """Return the queues whose workers this host starts: its file is in use, and it has the
    program.
    """
    if not synced.is_in_use:
        return ()
    rules = {job.queue: job.queue_rules for job in (synced.jobs or {}).values()}
    folder = schedule.real_file.parent
    return tuple(
        QueueStart(
            queue=name,
            command=queue.start.command,
            max_workers=queue.start.max_workers,
            concurrency=worker_concurrency(queue),
            start_timeout=queue.start.start_timeout,
        )
        for name, queue in sorted(rules.items())
        if queue.start and find_program(queue.start.command[0], folder)
    )


def worker_concurrency(queue: Queue) -> int:
    """Return how many runs a worker of ``queue`` executes at once."""
    default = DEFAULT_ASYNC_CONCURRENCY if queue.mode is Mode.ASYNC else default_concurrency()
    return queue.concurrency or default


@contextmanager
def starting(context: StartContext, starts: Sequence[QueueStart]) -> Iterator[None]:
    """Start missing workers in another process, and wait for it at the end."""
    if not starts:
        yield
        return

    def start(parent: int, pipes: list[forking.Pipe]) -> None:
        forking.detach(parent, keep=(0, 1, 2))
        try:
            start_missing(context, starts)
        except (psycopg.Error, EnvironmentFailed) as error:
            log.warning("starts.failed", error=failure(error))
        os._exit(0)

    pid, _ = forking.fork("starter", 0, start)
    try:
        yield
    finally:
        status = 0
        with contextlib.suppress(ChildProcessError):  # PID 1 of a container has reaped it
            _, status = os.waitpid(pid, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            log.error("starts.failed", error=f"its process ended with {code}")


def start_missing(
    context: StartContext, starts: Sequence[QueueStart], stop: int | None = None
) -> int:
    """Start missing workers once, or each second until the pipe ``stop`` is closed. Then wait for
    their commands, and decide once more if one has failed. Return how many were started.

    The rows of workers are committed before their commands run side by side, and no lock is held
    meanwhile. So a host that dies or hangs here costs only ``start_timeout``. A process that starts
    workers is not killed between a request and its command for the same reason.

    What commands return while the database is away is written when it is back. Once there are no
    more decisions, it is given up after ``MAX_TRIES``.
    """
    starter, tries = Starter(context, starts, stop), 0
    with starter.pool:
        while True:
            try:
                with db.connect(context.dsn, SESSION) as connection:
                    return starter.run(connection)
            except (psycopg.Error, EnvironmentFailed) as error:
                tries += starter.is_stopping
                if starter.is_stopping and (not starter.commands or tries == MAX_TRIES):
                    raise
                log.warning("starts.failed", error=failure(error))
            if starter.is_stopping:
                time.sleep(RETRY_SECONDS)
            else:
                starter.wait(RETRY_SECONDS)


class Starter:
    """Starts workers; ``commands`` are those whose ends are not written yet."""

    def __init__(
        self, context: StartContext, starts: Sequence[QueueStart], stop: int | None
    ) -> None:
        self._context, self._starts, self._stop = context, starts, stop
        self.pool = ThreadPoolExecutor(MAX_COMMANDS)
        self.commands: dict[Future[str | None], tuple[str, str]] = {}  # queue and worker
        self.is_stopping = stop is None
        self._decides, self._count = True, 0

    def run(self, connection: Connection) -> int:
        """Start workers until stopped, and return how many were."""
        namespace = self._context.namespace
        while True:
            for start in self._starts if self._decides else ():
                for id in _request(connection, namespace, start):
                    command = self.pool.submit(run_command, self._context, start, id)
                    self.commands[command] = (start.queue, id)
                    self._count += 1
            if self.is_stopping and not self.commands:
                return self._count
            self.wait(INTERVAL_SECONDS)
            for command in [command for command in self.commands if command.done()]:
                if error := command.result():
                    _note_failure(connection, namespace, *self.commands[command], error)
                    self._decides = True
                del self.commands[command]

    def wait(self, seconds: float) -> None:
        """Wait for a command's end if stopped, otherwise for the stop."""
        if self.is_stopping or self._stop is None:
            wait_for(self.commands, return_when=FIRST_COMPLETED)
        else:
            self.is_stopping = bool(select.select([self._stop], [], [], seconds)[0])
        self._decides = not self.is_stopping


def _request(connection: Connection, namespace: str, start: QueueStart) -> Sequence[str]:
    """Decide about a queue, again under its lock if there is anything to do, and return the ids of
    the workers to start.
    """
    scope = {"namespace": namespace, "queue": start.queue}
    try:
        if not _decide(connection, scope, start).is_change:
            return []
        with connection.transaction():
            execute(connection, "workers.lock_queue", **scope)
            decision = _decide(connection, scope, start)
            return _write(connection, {**scope, "now": decision.state.decided_at}, start, decision)
    except psycopg.errors.LockNotAvailable:
        return []  # another host decides
    except psycopg.Error as error:
        if connection.closed:
            raise
        log.warning("starts.failed", queue=start.queue, error=failure(error))
        return []  # the others are started


def _decide(connection: Connection, scope: dict[str, Any], start: QueueStart) -> Decision:
    """Read what the rule needs, and apply it."""
    [(*columns, now)] = execute(connection, "workers.state", **scope, now=None).fetchall()
    state = StartState(*columns)
    most = max(MIN_COUNTED, 2 * start.max_workers * start.concurrency)
    parameters = {**scope, "now": now, "decided_at": state.decided_at, "most": most}
    workers = fetch(connection, WorkerRow, "workers.rows", **parameters)
    [load] = fetch(connection, QueueLoad, "workers.load", **parameters)
    return decide(now, start, state, workers, load)


def _write(
    connection: Connection, scope: dict[str, Any], start: QueueStart, decision: Decision
) -> Sequence[str]:
    ends = {**decision.lost, **decision.failed}
    if ends:
        errors = list(ends.values())
        execute(connection, "workers.note_ends", **scope, ids=list(ends), errors=errors)
    execute(connection, "workers.save_state", **scope, **asdict(decision.state))
    ids = [f"{start.queue}-{secrets.token_hex(5)}" for _ in range(decision.count)]
    if ids:
        timeout = start.start_timeout
        execute(connection, "workers.request", **scope, ids=ids, start_timeout=timeout)
    return ids


def _note_failure(connection: Connection, namespace: str, queue: str, id: str, error: str) -> None:
    """Write that the command of a start has failed, unless its worker has come all the same."""
    scope = {"namespace": namespace, "queue": queue}
    with connection.transaction():
        # under the lock, as all that is written about the queue
        execute(connection, "workers.lock_queue", **scope)
        values = {**scope, "id": id, "error": error, "now": None}
        noted = execute(connection, "workers.note_command", **values).fetchall()
    if noted:
        log.warning("start.failed", queue=queue, worker=id, error=error)


class StartTask:
    """Starts missing workers beside a loop, in a process of its own, as the file in use says."""

    def __init__(self, context: StartContext, starts: tuple[QueueStart, ...]) -> None:
        self._state, self._changed = (context, starts), asyncio.Event()

    def follow(self, context: StartContext, starts: tuple[QueueStart, ...]) -> None:
        """Start the workers of ``starts`` from now on."""
        if (context, starts) != self._state:
            self._state = context, starts
            self._changed.set()

    async def run(self, worker: Worker) -> None:
        """Start workers until cancelled."""
        while True:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            if not self._state[1]:
                await changed
                continue
            reading, writing = os.pipe()
            keep = partial(start_missing, *self._state, reading)
            helper = asyncio.create_task(run_in_helper(keep, (reading,)))
            try:
                try:
                    await asyncio.wait({helper, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    os.close(writing)  # the helper ends
                await asyncio.wait({helper})
            except asyncio.CancelledError:
                await asyncio.wait({helper}, timeout=STOP_SECONDS)  # commands go on without it
                raise
            finally:
                os.close(reading)
                helper.cancel()
                changed.cancel()
                [ended, _] = await asyncio.gather(helper, changed, return_exceptions=True)
            if isinstance(ended, Exception):
                log.warning("starts.failed", error=str(ended))
                await asyncio.sleep(RETRY_SECONDS)
