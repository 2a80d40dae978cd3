"""Starting workers: what to start is decided by ``start_rule``, and the commands are run here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

import psycopg

from yamlsched import db, log
from yamlsched.db.query import Connection, execute, fetch
from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.programs import signal_group
from yamlsched.schedule.job import Mode, Queue
from yamlsched.service.start_commands import (
    Command,
    QueueStart,
    StartContext,
    find_program,
    launch,
)
from yamlsched.service.start_rule import (
    Decision,
    QueueLoad,
    StartSettings,
    StartState,
    WorkerRow,
    decide,
)
from yamlsched.service.steps import failure
from yamlsched.service.workers import DEFAULT_ASYNC_CONCURRENCY
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.worker import forking
from yamlsched.worker.executor import wait
from yamlsched.worker.permits import default_concurrency
from yamlsched.worker.sessions import run_in_helper
from yamlsched.worker.worker import Worker

POLL_SECONDS = 0.05  # between polls of commands that run
INTERVAL_SECONDS = 1.0  # between decisions of a loop
STOP_SECONDS = 2.0  # that a loop which ends leaves to decisions
RETRY_SECONDS = 5.0  # after the database did not answer a loop
MIN_COUNTED = 1_000  # runs of each level that are counted: the first ones may wait for a limit
SESSION = {**db.connection.SESSION_SETTINGS, "statement_timeout": "10s", "lock_timeout": "2s"}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the rule decides about, at ``now`` of the database."""

    now: datetime
    state: StartState
    workers: Sequence[WorkerRow]
    load: QueueLoad

    def decide(self, settings: StartSettings) -> Decision:
        """Apply the rule."""
        return decide(self.now, settings, self.state, self.workers, self.load)

    def is_changed_by(self, decision: Decision) -> bool:
        """Return whether ``decision`` is more than to do nothing."""
        is_same_state = decision.state.failed_starts == self.state.failed_starts
        return bool(decision.count or decision.lost or decision.failed) or not is_same_state


def queue_starts(schedule: ScheduleFile, synced: SyncResult) -> tuple[QueueStart, ...]:
    """Return the queues whose workers this host starts: its file is in use, and it has the
    program.
    """
    if not synced.is_in_use:
        return ()
    rules = {job.queue: job.queue_rules for job in (synced.jobs or {}).values()}
    folder = schedule.real_file.parent
    starts = [_start(name, rules[name]) for name in sorted(rules)]
    return tuple(start for start in starts if start and find_program(start.command[0], folder))


def worker_concurrency(queue: Queue) -> int:
    """Return how many runs a worker of ``queue`` executes at once."""
    default = DEFAULT_ASYNC_CONCURRENCY if queue.mode is Mode.ASYNC else default_concurrency()
    return queue.concurrency or default


def _start(name: str, queue: Queue) -> QueueStart | None:
    if queue.start is None:
        return None
    settings = StartSettings(
        max_workers=queue.start.max_workers, concurrency=worker_concurrency(queue)
    )
    return QueueStart(
        queue=name,
        command=queue.start.command,
        settings=settings,
        start_timeout=queue.start.start_timeout,
    )


@contextmanager
def starting(context: StartContext, starts: Sequence[QueueStart]) -> Iterator[None]:
    """Start missing workers in another process, and wait for it at the end."""
    if not starts:
        yield
        return

    def start(parent: int, pipes: list[forking.Pipe]) -> None:
        forking.detach(parent, keep=(0, 1, 2))
        start_missing(context, starts)
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

    It is not killed between a request and its command: the start would count until its timeout.
    """
    count, connection, is_stopping = 0, None, False
    with Starter(context, starts) as starter, ExitStack() as stack:
        while not is_stopping or starter.is_busy or starter.failures:
            pause = INTERVAL_SECONDS
            try:
                if connection is None:
                    connection = stack.enter_context(db.connect(context.dsn, SESSION))
                starter.collect()
                if starter.note_failures(connection) or not is_stopping:
                    count += starter.start(connection)
            except (psycopg.Error, EnvironmentFailed) as error:
                log.warning("starts.failed", error=failure(error))
                connection, pause = None, RETRY_SECONDS
                stack.close()
                if is_stopping:
                    starter.failures.clear()  # not written: these starts time out
            if is_stopping or stop is None:
                is_stopping = True
                time.sleep(POLL_SECONDS)
            else:
                is_stopping = bool(select.select([stop], [], [], pause)[0])
    return count


def _request(connection: Connection, namespace: str, start: QueueStart) -> Sequence[str]:
    """Decide about a queue under its lock, if there seems to be anything to decide."""
    unlocked = read_situation(connection, namespace, start)
    if not unlocked.is_changed_by(unlocked.decide(start.settings)):
        return []
    try:
        with connection.transaction():
            situation = read_situation(connection, namespace, start, locks=True)
            decision = situation.decide(start.settings)
            return _write(connection, namespace, start, situation.now, decision)
    except psycopg.errors.LockNotAvailable:
        return []  # another host decides


def read_situation(
    connection: Connection,
    namespace: str,
    start: QueueStart,
    locks: bool = False,
    now: datetime | None = None,
) -> Situation:
    """Read what the rule needs; ``locks``: under the lock of the queue."""
    settings = start.settings
    scope = {"namespace": namespace, "queue": start.queue}
    if locks:
        execute(connection, "workers.lock_queue", **scope)
    [(*state, now)] = execute(connection, "workers.state", **scope, now=now).fetchall()
    most = max(MIN_COUNTED, 2 * settings.max_workers * settings.concurrency)
    parameters = {**scope, "now": now, "decided_at": state[-1], "most": most}
    [counted] = fetch(connection, QueueLoad, "workers.load", **parameters)
    return Situation(
        now=now,
        state=StartState(*state),
        workers=fetch(connection, WorkerRow, "workers.rows", **parameters),
        load=counted,
    )


def _write(
    connection: Connection,
    namespace: str,
    start: QueueStart,
    now: datetime,
    decision: Decision,
) -> Sequence[str]:
    scope = {"namespace": namespace, "queue": start.queue, "now": now}
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


def note_command(connection: Connection, namespace: str, queue: str, id: str, error: str) -> None:
    """Write that the command of a start has failed, unless its worker has come all the same."""
    scope = {"namespace": namespace, "queue": queue}
    with connection.transaction():
        # under the lock, as all that is written about the queue
        execute(connection, "workers.lock_queue", **scope)
        noted = execute(
            connection, "workers.note_command", **scope, id=id, error=error, now=None
        ).fetchall()
    if noted:
        log.warning("start.failed", queue=queue, worker=id, error=error)


class StartTask:
    """Starts missing workers beside a loop, in a process of its own, as the file in use says."""

    def __init__(self, context: StartContext, starts: tuple[QueueStart, ...]) -> None:
        self._context, self._starts, self._changed = context, starts, asyncio.Event()

    def follow(self, context: StartContext, starts: tuple[QueueStart, ...]) -> None:
        """Start the workers of ``starts`` from now on."""
        if (context, starts) != (self._context, self._starts):
            self._context, self._starts = context, starts
            self._changed.set()

    async def run(self, worker: Worker) -> None:
        """Start workers until cancelled."""
        while True:
            self._changed.clear()
            if not self._starts:
                await self._changed.wait()
                continue
            reading, writing = os.pipe()
            running = os.fdopen(writing, "wb")  # closed: the helper ends
            keep = partial(start_missing, self._context, self._starts, reading)
            helper = asyncio.create_task(run_in_helper(keep, (reading,)))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({helper, changed}, return_when=asyncio.FIRST_COMPLETED)
                running.close()
                await asyncio.wait({helper})
            except asyncio.CancelledError:
                running.close()
                await asyncio.wait({helper}, timeout=STOP_SECONDS)  # commands go on without it
                raise
            finally:
                os.close(reading)
                helper.cancel()
                changed.cancel()
                [ended, _] = await asyncio.gather(helper, changed, return_exceptions=True)
            if isinstance(ended, Exception):
                log.warning("starts.failed", error=str(ended))
                await wait(self._changed, RETRY_SECONDS)


class Starter:
    """Requests workers of ``starts``, and runs their commands side by side.

    The rows of workers are committed before their commands run, and no lock is held meanwhile. So
    a host that dies or hangs here costs only ``start_timeout``.
    """

    def __init__(self, context: StartContext, starts: Sequence[QueueStart]) -> None:
        self._context, self._starts = context, {start.queue: start for start in starts}
        self._running: dict[str, Command] = {}
        self.failures: dict[str, tuple[str, str]] = {}  # queue and error, by worker

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._running.values():
            signal_group(command.process.pid, signal.SIGKILL)
            command.process.wait()
            command.output.close()

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def start(self, connection: Connection) -> int:
        """Decide about each queue, and start the commands; return how many."""
        count = 0
        for start in self._starts.values():
            try:
                ids = _request(connection, self._context.namespace, start)
                self.launch(start, ids)
            except (psycopg.Error, EnvironmentFailed) as error:
                log.warning("starts.failed", error=failure(error))  # the others are started
                continue
            count += len(ids)
        return count

    def launch(self, start: QueueStart, ids: Iterable[str]) -> None:
        """Start the commands of requested workers."""
        for id in ids:
            try:
                self._running[id] = launch(self._context, id, start)
            except OSError as error:
                self.failures[id] = (start.queue, f"{start.command[0]}: {error.strerror}")

    def collect(self) -> None:
        """Collect the errors of commands that have ended, and end those that run for too long."""
        for id, command in list(self._running.items()):
            if command.process.poll() is None:
                command.end_if_late(time.monotonic() - command.started_at)
                continue
            if error := command.error():
                self.failures[id] = (command.queue, error)
            command.output.close()
            del self._running[id]

    def note_failures(self, connection: Connection) -> int:
        """Write the errors of commands; return how many."""
        failures = list(self.failures.items())
        for id, (queue, error) in failures:
            note_command(connection, self._context.namespace, queue, id, error)
            del self.failures[id]
        return len(failures)
