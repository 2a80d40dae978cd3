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
import pickle
import select
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

from yamlsched import plugin_manager
from yamlsched.db.dsn import redactor
from yamlsched.handler import calls
from yamlsched.handler.backends import Backend
from yamlsched.handler.calls import payload_mismatch, read_payload, resolve, takes_run
from yamlsched.handler.run import Run
from yamlsched.handler.sessions import sessions
from yamlsched.runs.frameworks import close_stale_connections
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, Usage
from yamlsched.worker import forking
from yamlsched.worker.attempt import Workload
from yamlsched.worker.local import protocol, usage
from yamlsched.worker.local.commands import CommandRunner
from yamlsched.worker.local.process_state import ProcessState
from yamlsched.worker.local.protocol import (
    CLOSED_PIPES,
    FAILED_EXIT,
    MAX_FRAME_BYTES,
    TASKS,
    Channel,
    Frames,
    Success,
    Task,
)

MAX_IDLE_SESSION_SECONDS = 1.0  # without a task, after which the sessions of handlers are closed
FLUSH_INTERVAL_SECONDS = 0.02  # for which the report of a success may be held back
# an attempt that takes longer is reported at once, so that the parent sends the next in time
SLOW_SECONDS = 0.002
MAX_READ_BYTES = 1 << 16
FRAME_OVERHEAD_BYTES = 64  # of a report, beside its pickle
COUNT_BYTES = 4  # of an int: how many bytes a pipe holds
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
        self.is_noted = self.was_stopped = False  # they know that it has started
        self.started = time.perf_counter()

    def load(self) -> Callable[..., Any]:
        """Return the handler, which is imported if it is called for the first time."""
        handler = self.runner.handlers.get(self.path)
        if handler is None:
            handler = self.runner.handlers[self.path] = self.runner.import_handler(self)
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
            runner, run = self.runner, ClaimedRun._make(self.values)
            report = runner.memory.progress.reporter(self.index, run)
            claim = run.id, run.attempt, run.locked_by
            backend = runner.create_backend(
                runner.dsn, runner.namespace, *claim, self.timeout, report=report
            )
            self.run = calls.make_run(run, self.payload, backend)
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
        self.successes: list[Success] = []  # not sent yet
        self.unsent = bytearray()  # frames of all else

    def import_handler(self, call: HandlerCall) -> Callable[..., Any]:
        return resolve(call.path)

    def receive(self) -> Iterator[Any]:
        """Return the frames that a piece of what the parent sends completes. Exits when the pipe is
        closed.
        """
        piece = os.read(self.channel.commands, MAX_READ_BYTES)
        if not piece:
            plugin_manager.answers("process_exiting")
            os._exit(0)
        return self.frames.feed(piece)

    def put(self, kind: int, content: Any = None) -> None:
        """Report something; see ``OUTPUT``."""
        self.unsent += protocol.frame(kind, content)

    def report(
        self, index: int, end: AttemptEnd | None, took: float, used: Usage | None = None
    ) -> None:
        """Report how an attempt has ended; None: a plain success."""
        if end is None:
            self.memory.end(index, protocol.SUCCEEDED)
            self.successes.append((index, took, used))
            return
        content = pickle.dumps(end._replace(usage=used))
        if len(content) > MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES:
            content = pickle.dumps(_refused(end))
        self.memory.end(index)
        self.put(protocol.END, (index, took, content))

    def send(self) -> None:
        """Send what was reported; wait while the pipe is full."""
        if self.successes:
            self.put(protocol.SUCCESSES, self.successes)
        unwritten = memoryview(self.unsent)
        self.unsent, self.successes = bytearray(), []
        while unwritten:
            unwritten = unwritten[os.write(self.channel.results, unwritten) :]

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
        self.pipes = [(descriptor, os.fstat(descriptor).st_ino) for descriptor in channel[:4]]
        self.tasks: deque[Task] = deque()
        self.is_waiting = False  # for the parent, which handles what was reported
        self.call: HandlerCall | None = None  # while its handler executes
        self.unread = bytearray(COUNT_BYTES)
        self.sent_at = time.perf_counter()
        self.stdin, self.stdout, self.stderr = sys.stdin, sys.stdout, sys.stderr
        signal.signal(signal.SIGTERM, self._on_sigterm)
        forking.reset_signals_in_forks()
        self.state = ProcessState(parent)

    def main(self) -> NoReturn:
        try:
            self.memory.shared.is_ready = True
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
            self.put(protocol.WITHDRAWN, index)
            self.send()
            return
        if not self.successes:
            # not for each of many that are quick: it would take longer than they do
            usage.start(self.memory.shared)
        call = HandlerCall(self, task)
        end = self._attempt(call, target)
        call.finish(end)
        self._flush_output()
        has_printed = self._has_unread() or self._has_printed()
        now = time.perf_counter()
        took = now - call.started
        is_program = not isinstance(target, str)
        is_quick = end is None and not has_printed and took <= SLOW_SECONDS
        used = None
        if not (is_quick and (self.successes or self.tasks)):
            used = self.commands.usage if is_program else usage.read(self.memory.shared)
        is_followed = bool(self.tasks) and self.tasks[0][1] == target  # by a run of the same job
        # not for each of many that are quick: it would take longer than they do
        is_due = not (is_quick and is_followed and now - self.sent_at <= FLUSH_INTERVAL_SECONDS)
        if is_due:
            self._check_pipes()
            must_retire = self.commands.left_processes if is_program else not self.state.restore()
            if must_retire:
                self.put(protocol.RETIRE)
            # the next attempt starts here once the parent has read what this one printed, and has
            # withdrawn what is not to follow
            self.is_waiting = has_printed or must_retire
            if self.is_waiting:
                self.put(protocol.WAIT)
        self.report(index, end, took, used)
        if is_due:
            self.send()
            self.sent_at = now

    def _has_printed(self) -> bool:
        """Return whether the parent has read something since the attempt started."""
        self.memory.wait_for_reader()
        return bool(self.memory.shared.has_printed)

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
        if self.call is not None and self.memory.shared.is_stop_requested:
            self.call.was_stopped = True
            raise calls.Stopped("stopped by yamlsched")

    def _check_pipes(self) -> None:
        """Exit if the handler closed the pipes: their numbers may now belong to a file of the
        handler.

        Let stdout and stderr be the pipe of output again, whatever the handler did to their
        descriptors.
        """
        try:
            is_open = all(os.fstat(pipe).st_ino == inode for pipe, inode in self.pipes)
        except OSError:
            is_open = False
        if not is_open:
            os._exit(CLOSED_PIPES)
        with contextlib.suppress(OSError):  # no descriptor is left, or no /dev/null: it is replaced
            set_descriptors(self.channel.output)

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

    def _has_unread(self) -> bool:
        """Return whether the pipe of stdout and stderr holds something."""
        try:
            fcntl.ioctl(self.channel.output, termios.FIONREAD, self.unread)
        except OSError:
            return False  # the handler closed it
        return any(self.unread)


def _refused(end: AttemptEnd) -> AttemptEnd:
    runs = sum(len(batch.payloads) for batch in end.enqueued)
    error = (
        f"it enqueued {runs} runs, over the limit of {MAX_FRAME_BYTES >> 20} MiB: enqueue fewer in"
        " one attempt, and let some of them enqueue the rest"
    )
    return AttemptEnd(EndKind.RAISED, error, "EnqueueRefused")


def set_descriptors(output: int) -> None:
    """Let stdin be empty, and stdout and stderr be the pipe ``output``."""
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null:
        os.close(null)
    os.set_inheritable(0, True)


def standard_streams() -> list[TextIO]:
    """Return stdout and stderr on descriptors 1 and 2, which they do not close."""
    text = "utf-8", "backslashreplace"
    return [os.fdopen(descriptor, "w", 1, *text, closefd=False) for descriptor in (1, 2)]


async def _await(value: Any) -> Any:
    return await value
