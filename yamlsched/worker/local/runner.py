"""The child: executes tasks one at a time, and reports how each ended.

It is forked, holds no session of the parent's, and may be killed at any instant. What the parent
must know even then is in the shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import decimal
import fcntl
import inspect
import os
import select
import signal
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from yamlsched import plugins
from yamlsched.db.dsn import redactor
from yamlsched.handler import calls
from yamlsched.handler.backends import PostgresBackend
from yamlsched.handler.calls import payload_mismatch, read_payload, resolve, takes_run
from yamlsched.handler.run import Run
from yamlsched.handler.sessions import sessions
from yamlsched.runs.frameworks import close_stale_connections
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.worker import forking
from yamlsched.worker.local import protocol, usage
from yamlsched.worker.local.commands import CommandRunner
from yamlsched.worker.local.process_state import ProcessState
from yamlsched.worker.local.protocol import (
    CLOSED_PIPES,
    FAILED_EXIT,
    RESUME,
    Channel,
    Frames,
    Task,
    TaskEnd,
    frame,
)

MAX_IDLE_SESSION_SECONDS = 1.0  # without a task, after which the sessions of handlers are closed
FLUSH_INTERVAL_SECONDS = 0.02  # for which the report of a success may be held back
# an attempt that takes longer is reported at once, so that the parent sends the next in time
SLOW_SECONDS = 0.002
COUNT = struct.Struct("i")  # of bytes in a pipe
calls.OWN_FILES.add(__file__)


class Runner:
    """One child process, from fork to exit."""

    def __init__(
        self, channel: Channel, dsn: str, namespace: str, commands: CommandRunner, parent: int
    ) -> None:
        self.channel, self.memory = channel, channel.memory
        self.dsn, self.namespace, self.commands = dsn, namespace, commands
        self.pid = os.getpid()
        self.pipes = [(descriptor, os.fstat(descriptor).st_ino) for descriptor in channel[:3]]
        self.stdin_inode = os.fstat(0).st_ino
        self.tasks: deque[Task] = deque()
        self.may_continue = True
        self.handlers: dict[str, Callable[..., Any]] = {}  # that have been imported
        self.import_seconds = 0.0  # of the attempt, for importing its handler
        self.redact = redactor(dsn)
        # what plugins want to be told when the attempt ends
        self.on_end: Callable[[AttemptEnd | None], None] | None = None
        self.is_noted = False  # they know that it has started
        self.started = 0.0  # when the attempt that is executing started
        self.is_calling = self.was_stopped = False
        self.unread = bytearray(COUNT.size)
        # after the last mark: unread bytes of output, and `memory.reads`
        self.marked: tuple[int, int] | None = None
        self.marked_prints = 0  # `memory.prints` then
        self.successes: list[protocol.Success] = []  # not sent yet
        self.sent_at = time.perf_counter()
        self.frames = Frames()
        self.stdin, self.stdout, self.stderr = sys.stdin, sys.stdout, sys.stderr
        signal.signal(signal.SIGTERM, self._on_sigterm)
        forking.reset_signals_in_forks()
        self.state = ProcessState(parent)

    def main(self) -> NoReturn:
        """Execute tasks until the parent closes the pipe. Whatever happens, the
        process ends here.
        """
        try:
            self.memory.set_ready()
            while True:
                while not self.tasks:
                    self._receive()
                self.execute(*self.tasks.popleft())
        except BaseException as error:
            if os.getpid() == self.pid:
                with contextlib.suppress(OSError):
                    os.write(
                        2,
                        f"yamlsched: a child process exits: {type(error).__name__}: {error}\n".encode(),
                    )
            os._exit(FAILED_EXIT)

    def _receive(self) -> None:
        """Wait for a piece of what the parent sends, perhaps less than a frame. Exits when the pipe
        is closed.
        """
        self._close_idle_sessions()
        piece = os.read(self.channel.commands, 1 << 16)
        if not piece:
            plugins.answers("process_exiting")
            os._exit(0)
        for content in self.frames.feed(piece):
            if content == RESUME:
                self.may_continue = True
            else:
                self.tasks.extend(content)

    def _close_idle_sessions(self) -> None:
        """Close the sessions of handlers if there is nothing to do for a moment: the server has a
        limit.
        """
        if sessions.has_open:
            poll = select.poll()
            poll.register(self.channel.commands, select.POLLIN)
            if not poll.poll(MAX_IDLE_SESSION_SECONDS * 1000):
                sessions.close()

    def execute(
        self,
        index: int,
        target: str | tuple[Any, ...],
        payload: str,
        dead_run_id: int | None,
        timeout: float,
        run: tuple[Any, ...],
    ) -> None:
        """Execute the task at ``index`` and report its end.

        ``target`` is the path of the handler, or a Program. ``dead_run_id`` is the run whose death
        an on_dead handler is called for. ``timeout`` is in seconds. ``run`` has the values of a
        ClaimedRun.
        """
        if not self.memory.start(index):
            self._send(time.perf_counter(), TaskEnd(index, None))
            return
        if not self.successes:
            # not for each of many that are quick: it would take longer than they do
            usage.start(self.memory)
        self.started, self.import_seconds = time.perf_counter(), 0.0
        self.on_end, self.is_noted = None, False
        end = self._attempt(index, target, payload, dead_run_id, timeout, run)
        if os.getpid() != self.pid:
            # the handler forked, and this is its child, which has returned from the handler
            calls.exit_fork(None)
        if self.on_end is not None:
            self.on_end(end)
        self._flush_output()
        has_mark = self._needs_mark()
        now = time.perf_counter()
        took = now - self.started
        is_program = not isinstance(target, str)
        is_plain = end is None and not has_mark and not self.import_seconds
        is_one_of_many = is_plain and took <= SLOW_SECONDS and (self.successes or self.tasks)
        used = (
            None
            if is_one_of_many
            else self.commands.usage
            if is_program
            else usage.read(self.memory)
        )
        is_followed = bool(self.tasks) and self.tasks[0][1] == target  # by a run of the same job
        is_due = (
            not is_plain
            or not is_followed
            or took > SLOW_SECONDS
            or now - self.sent_at > FLUSH_INTERVAL_SECONDS
        )
        must_retire = False
        if is_due:  # not for each of many that are quick: it would take longer than they do
            self._check_pipes()
            must_retire = self.commands.left_processes if is_program else not self.state.restore()
            is_plain = is_plain and not must_retire
        if has_mark:
            self._write_mark(index)
        if end is None:
            self.memory.succeed(index)
        else:
            self.memory.end(index)
        if is_plain:
            self.successes.append((index, took, used))
            if is_due:
                self._send(now)
        else:
            end = (end or AttemptEnd(EndKind.RETURNED))._replace(usage=used)
            self._send(now, TaskEnd(index, end, took, self.import_seconds, has_mark, must_retire))
        if must_retire:
            # the next attempt starts here only if the parent has not withdrawn it
            self.may_continue = False
            while not self.may_continue:
                self._receive()

    def _attempt(
        self,
        index: int,
        target: str | tuple[Any, ...],
        text: str,
        dead_run_id: int | None,
        timeout: float,
        values: tuple[Any, ...],
    ) -> AttemptEnd | None:
        """Call the handler, or run the program; return None if it returned nothing and there is
        nothing else to report.

        This is the one place where any exception is caught: each is the end of the attempt.
        """
        run: Run | None = None
        try:
            if not isinstance(target, str):
                self._note_start(values)
                return self.commands.execute(target, ClaimedRun._make(values))
            path, is_on_dead_call = target, dead_run_id is not None
            payload = {} if text == "{}" or is_on_dead_call else read_payload(text)
            if (handler := self.handlers.get(path)) is None:
                handler = self.handlers[path] = resolve(path)
                self._note_start(values)
                self.import_seconds = time.perf_counter() - self.started
            else:
                self._note_start(values)
            if is_on_dead_call or takes_run(handler):
                claimed = ClaimedRun._make(values)
                report = self.memory.progress.reporter(index, claimed)
                backend = PostgresBackend(
                    self.dsn,
                    self.namespace,
                    claimed.id,
                    claimed.attempt,
                    claimed.locked_by,
                    timeout,
                    report=report,
                )
                run = calls.make_run(claimed, payload, backend)
            if not is_on_dead_call and (
                mismatch := payload_mismatch(handler, path, tuple(payload), run is not None)
            ):
                return AttemptEnd(EndKind.DISCARDED, mismatch, "PayloadMismatch")
            # a copy, so that no run sees the context variables that another one has set
            value = contextvars.copy_context().run(self._call, handler, payload, run, dead_run_id)
            return calls.returned(value, run, self.was_stopped)
        except BaseException as error:
            if os.getpid() != self.pid:
                calls.exit_fork(error)
            if not self.is_noted:
                self._note_start(values)  # the handler could not be imported
            return calls.raised(error, run)

    def _note_start(self, values: tuple[Any, ...]) -> None:
        """Tell plugins that the attempt starts."""
        self.is_noted = True
        self.on_end = plugins.start(
            "handler_started",
            run=ClaimedRun._make(values),
            namespace=self.namespace,
            redact=self.redact,
        )

    def _call(
        self,
        handler: Callable[..., Any],
        payload: dict[str, Any],
        run: Run | None,
        dead_run_id: int | None,
    ) -> Any:
        """Call the handler so that SIGTERM stops it, and nothing else."""
        self.was_stopped = False
        close_stale_connections()
        # else handlers would change the one that modules have set
        decimal.setcontext(decimal.getcontext().copy())
        try:
            self.is_calling = True
            if run is None:
                value = handler(**payload)
            elif dead_run_id is not None:
                value = handler(run.dead_run(dead_run_id))
            else:
                value = handler(**payload, run=run)
            return (
                asyncio.run(_await(value))
                if value is not None and inspect.isawaitable(value)
                else value
            )
        finally:
            self.is_calling = False
            close_stale_connections()

    def _on_sigterm(self, signum: int, frame: object) -> None:
        """Stop the handler if the parent wants that. Otherwise all processes were signalled, and
        the parent decides.
        """
        if self.is_calling and self.memory.is_stop_requested:
            self.was_stopped = True
            raise calls.Stopped("stopped by yamlsched")

    def _send(self, now: float, report: TaskEnd | None = None) -> None:
        if report is None:
            content = frame((self.successes, None))
        else:
            content = protocol.bounded(
                report, lambda bounded: frame((self.successes, bounded.encode()))
            )
        unsent = memoryview(content)
        while unsent:
            unsent = unsent[os.write(self.channel.results, unsent) :]
        self.successes.clear()
        self.sent_at = now

    def _check_pipes(self) -> None:
        """Exit if the handler closed the pipes: their numbers may now belong to a file of the
        handler.

        Let stdout and stderr be the pipe of output again, whatever the handler did to their
        descriptors.
        """
        if not all(_has_inode(descriptor, inode) for descriptor, inode in self.pipes):
            os._exit(CLOSED_PIPES)
        output, inode = self.pipes[2]
        for descriptor in (1, 2):
            if not _has_inode(descriptor, inode):
                os.dup2(output, descriptor)
        if not _has_inode(0, self.stdin_inode):
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.set_inheritable(0, True)
            if null:
                os.close(null)

    def _flush_output(self) -> None:
        """Flush what the handler printed, and undo what it did to the streams that its successors
        print to.
        """
        sys.stdin = self.stdin
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            self._check_pipes()
            self.stdout = None  # their current state is unknown: both are created again
        if sys.stdout is not self.stdout or sys.stderr is not self.stderr:
            sys.stdout, sys.stderr = self.stdout, self.stderr = standard_streams()

    def _needs_mark(self) -> bool:
        """Return whether the attempt may have printed something: since the last mark."""
        unread = self._unread_bytes()
        reads = self.memory.reads  # after the bytes are counted: another read may have taken them
        if reads % 2 or self.memory.prints != self.marked_prints:
            return True
        return unread > 0 and (unread, reads) != self.marked

    def _write_mark(self, index: int) -> None:
        mark = self.memory.marks.mark(index)
        while True:
            try:
                os.write(self.channel.output, mark)
                break
            except BlockingIOError:  # a handler made the pipe non-blocking, and it is full
                poll = select.poll()
                poll.register(self.channel.output, select.POLLOUT)
                poll.poll()
        self.marked_prints = self.memory.prints
        reads = self.memory.reads  # before the bytes are counted
        self.marked = None if reads % 2 else (self._unread_bytes(), reads)

    def _unread_bytes(self) -> int:
        """Return how many bytes the pipe of stdout and stderr holds."""
        try:
            fcntl.ioctl(self.channel.output, termios.FIONREAD, self.unread)
        except OSError:
            return 0  # the handler closed it
        return int(COUNT.unpack(self.unread)[0])


def _has_inode(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def standard_streams() -> tuple[Any, Any]:
    """Return stdout and stderr on descriptors 1 and 2, which they do not close."""
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "buffering": 1,
        "closefd": False,
    }
    return os.fdopen(1, "w", **options), os.fdopen(2, "w", **options)


async def _await(value: Any) -> Any:
    return await value
