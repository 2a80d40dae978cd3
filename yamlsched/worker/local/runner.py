"""What all children do alike: receive tasks, call handlers, trace them. And the child that executes
one task after the other.

A child is forked, holds no session of the parent's, and may be killed at any instant. What the
parent must know even then is in the shared memory.
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

from yamlsched import plugin_manager
from yamlsched.db.dsn import redactor
from yamlsched.handler import calls
from yamlsched.handler.backends import Backend
from yamlsched.handler.calls import payload_mismatch, read_payload, resolve, takes_run
from yamlsched.handler.run import Run
from yamlsched.handler.sessions import sessions
from yamlsched.runs.frameworks import close_stale_connections
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.worker import forking
from yamlsched.worker.attempt import Workload
from yamlsched.worker.local import protocol, usage
from yamlsched.worker.local.commands import CommandRunner
from yamlsched.worker.local.process_state import ProcessState
from yamlsched.worker.local.protocol import (
    CLOSED_PIPES,
    FAILED_EXIT,
    SUCCEEDED,
    TASKS,
    Channel,
    Frames,
    Task,
    TaskEnd,
)

MAX_IDLE_SESSION_SECONDS = 1.0  # without a task, after which the sessions of handlers are closed
FLUSH_INTERVAL_SECONDS = 0.02  # for which the report of a success may be held back
# an attempt that takes longer is reported at once, so that the parent sends the next in time
SLOW_SECONDS = 0.002
MAX_READ_BYTES = 1 << 16
COUNT = struct.Struct("i")  # of bytes in a pipe
calls.OWN_FILES.add(__file__)


class HandlerCall:
    """One attempt of a handler: what is called, and the end that this has."""

    def __init__(self, runner: Runner, task: Task) -> None:
        self.runner = runner
        self.index, target, self.text, self.timeout, self.values = task
        self.path = str(target)
        self.handler: Callable[..., Any] | None = None
        self.run: Run | None = None
        self.payload: dict[str, Any] = {}
        # what plugins want to be told when the attempt ends
        self.on_end: Callable[[AttemptEnd | None], None] | None = None
        self.is_noted = False  # they know that it has started
        self.import_seconds, self.was_stopped = 0.0, False
        self.started = time.perf_counter()

    def load(self) -> Callable[..., Any]:
        """Return the handler, which is imported if it is called for the first time."""
        handler = self.runner.handlers.get(self.path)
        if handler is None:
            handler = self.runner.handlers[self.path] = self.runner.import_handler(self)
            self.import_seconds = time.perf_counter() - self.started
        return handler

    def prepare(self) -> AttemptEnd | None:
        """Load the handler, and read what it is called with; return the end if it cannot be
        called.
        """
        if self.text != "{}":
            self.payload = read_payload(self.text)
        self.handler = handler = self.load()
        self.note_start()
        if takes_run(handler):
            self.run = calls.make_run(
                claimed := ClaimedRun._make(self.values),
                self.payload,
                self.runner.backend(self, claimed),
            )
        mismatch = payload_mismatch(handler, self.path, tuple(self.payload))
        return AttemptEnd(EndKind.DISCARDED, mismatch, "PayloadMismatch") if mismatch else None

    def __call__(self) -> Any:
        assert self.handler is not None
        if self.run is None:
            return self.handler(**self.payload)
        return self.handler(**self.payload, run=self.run)

    def returned(self, value: object) -> AttemptEnd | None:
        """Return the end of the attempt, or None for a success with nothing to report."""
        if os.getpid() != self.runner.pid:
            calls.exit_fork(None)  # the handler forked, and this is its child
        return calls.returned(value, self.run, self.was_stopped)

    def raised(self, error: BaseException) -> AttemptEnd:
        if os.getpid() != self.runner.pid:
            calls.exit_fork(error)
        self.note_start()  # if the handler could not be imported
        return calls.raised(error, self.run)

    def note_start(self) -> None:
        """Tell plugins that the attempt starts, once."""
        if not self.is_noted:
            self.is_noted = True
            self.on_end = plugin_manager.start(
                "handler_started",
                run=ClaimedRun._make(self.values),
                namespace=self.runner.namespace,
                redact=self.runner.redact,
            )

    def finish(self, end: AttemptEnd | None) -> None:
        if self.on_end is not None:
            self.on_end(end)


class Runner:
    """One child process, from fork to exit."""

    def __init__(self, channel: Channel, workload: Workload) -> None:
        self.channel, self.memory = channel, channel.memory
        self.dsn, self.namespace = workload.dsn, workload.namespace
        self.pid = os.getpid()
        self.handlers: dict[str, Callable[..., Any]] = {}  # that have been imported
        self.redact = redactor(workload.dsn)
        self.frames = Frames()
        self.create_backend: Callable[..., Backend] = Backend

    def import_handler(self, call: HandlerCall) -> Callable[..., Any]:
        return resolve(call.path)

    def backend(self, call: HandlerCall, run: ClaimedRun) -> Backend:
        """Return what the handler's ``run`` uses of the database."""
        return self.create_backend(
            self.dsn,
            self.namespace,
            run.id,
            run.attempt,
            run.locked_by,
            call.timeout,
            report=self.memory.progress.reporter(call.index, run),
        )

    def receive(self) -> list[Any]:
        """Return the frames that a piece of what the parent sends completes. Exits when the pipe is
        closed.
        """
        piece = os.read(self.channel.commands, MAX_READ_BYTES)
        if not piece:
            plugin_manager.answers("process_exiting")
            os._exit(0)
        return self.frames.feed(piece)

    def main(self) -> NoReturn:
        """Execute tasks until the parent closes the pipe. Whatever happens, the
        process ends here.
        """
        raise NotImplementedError

    def exit(self, error: BaseException, status: int = FAILED_EXIT) -> NoReturn:
        """End the process, which cannot continue."""
        if os.getpid() == self.pid:
            text = f"yamlsched: a child process exits: {type(error).__name__}: {error}\n"
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
        os._exit(status)


class ProcessRunner(Runner):
    """A child that executes one task after the other: handlers, or commands. ``parent`` is the
    worker's process id.
    """

    def __init__(self, channel: Channel, workload: Workload, parent: int) -> None:
        super().__init__(channel, workload)
        self.commands = CommandRunner(channel, parent, str(workload.file.parent))
        self.pipes = [(descriptor, os.fstat(descriptor).st_ino) for descriptor in channel[:3]]
        self.stdin_inode = os.fstat(0).st_ino
        self.tasks: deque[Task] = deque()
        self.is_waiting = False  # for the parent, which handles what was reported
        self.call: HandlerCall | None = None  # while its handler executes
        self.unread = bytearray(COUNT.size)
        self.successes: list[protocol.Success] = []  # not sent yet
        self.sent_at = time.perf_counter()
        self.stdin, self.stdout, self.stderr = sys.stdin, sys.stdout, sys.stderr
        signal.signal(signal.SIGTERM, self._on_sigterm)
        forking.reset_signals_in_forks()
        self.state = ProcessState(parent)

    def main(self) -> NoReturn:
        try:
            self.memory.set_ready()
            while True:
                while self.is_waiting or not self.tasks:
                    self._receive()
                self._execute(self.tasks.popleft())
        except BaseException as error:
            self.exit(error)

    def _receive(self) -> None:
        self._close_idle_sessions()
        for kind, content in self.receive():
            if kind == TASKS:
                self.tasks.extend(content)
            else:
                self.is_waiting = False

    def _close_idle_sessions(self) -> None:
        """Close the sessions of handlers if there is nothing to do for a moment: the server has a
        limit.
        """
        if sessions.has_open:
            poll = select.poll()
            poll.register(self.channel.commands, select.POLLIN)
            if not poll.poll(MAX_IDLE_SESSION_SECONDS * 1000):
                sessions.close()

    def _execute(self, task: Task) -> None:
        """Execute ``task``, and report its end."""
        index, target = task[:2]
        if not self.memory.start(index):
            self._send(time.perf_counter(), [TaskEnd(index, None)])
            return
        if not self.successes:
            # not for each of many that are quick: it would take longer than they do
            usage.start(self.memory)
        call = HandlerCall(self, task)
        end = self._attempt(call, target)
        call.finish(end)
        self._flush_output()
        has_printed = self._unread_bytes() > 0 or self.memory.has_printed()
        now = time.perf_counter()
        took = now - call.started
        is_program = not isinstance(target, str)
        is_success = end is None and not call.import_seconds
        is_quick = is_success and not has_printed and took <= SLOW_SECONDS
        used = None
        if not (is_quick and (self.successes or self.tasks)):
            used = self.commands.usage if is_program else usage.read(self.memory)
        is_followed = bool(self.tasks) and self.tasks[0][1] == target  # by a run of the same job
        # not for each of many that are quick: it would take longer than they do
        is_due = not (is_quick and is_followed and now - self.sent_at <= FLUSH_INTERVAL_SECONDS)
        must_retire = False
        if is_due:
            self._check_pipes()
            must_retire = self.commands.left_processes if is_program else not self.state.restore()
        self.memory.end(index, protocol.ENDED if end is not None else SUCCEEDED)
        reports = []
        if is_success:
            self.successes.append((index, took, used))
        else:
            end = (end or AttemptEnd(EndKind.RETURNED))._replace(usage=used)
            reports = [TaskEnd(index, end, took, call.import_seconds)]
        if not is_due:
            return
        # the next attempt starts here once the parent has read what this one printed, and has
        # withdrawn what is not to follow
        self.is_waiting = has_printed or must_retire
        self._send(now, reports, must_retire)

    def _attempt(self, call: HandlerCall, target: str | tuple[Any, ...]) -> AttemptEnd | None:
        """Call the handler, or run the program; return None if it returned nothing and there is
        nothing else to report.

        This is the one place where any exception is caught: each is the end of the attempt.
        """
        try:
            if not isinstance(target, str):
                call.note_start()
                return self.commands.execute(target, ClaimedRun._make(call.values))
            if (end := call.prepare()) is not None:
                return end
            # a copy, so that no run sees the context variables that another one has set
            return call.returned(contextvars.copy_context().run(self._call, call))
        except BaseException as error:
            return call.raised(error)

    def _call(self, call: HandlerCall) -> Any:
        """Call the handler so that SIGTERM stops it, and nothing else."""
        close_stale_connections()
        # else handlers would change the one that modules have set
        decimal.setcontext(decimal.getcontext().copy())
        try:
            self.call = call
            value = call()
            is_awaitable = value is not None and inspect.isawaitable(value)
            return asyncio.run(_await(value)) if is_awaitable else value
        finally:
            self.call = None
            close_stale_connections()

    def _on_sigterm(self, signum: int, frame: object) -> None:
        """Stop the handler if the parent wants that. Otherwise all processes were signalled, and
        the parent decides.
        """
        if self.call is not None and self.memory.is_stop_requested:
            self.call.was_stopped = True
            raise calls.Stopped("stopped by yamlsched")

    def _send(self, now: float, reports: list[TaskEnd], must_retire: bool = False) -> None:
        content = protocol.frames([], self.successes, reports, must_retire, self.is_waiting)
        protocol.write_all(self.channel.results, content)
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
