"""The shared child: executes many attempts at once, as coroutines of one event loop, and reports
how each ended.

It is forked, holds no session of the parent's, and may be killed at any instant. What the parent
must know even then is on the board.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from yamlsched import plugins
from yamlsched.db.dsn import redactor
from yamlsched.extras.shared import board as states
from yamlsched.extras.shared.backend import SharedBackend, SharedSessions
from yamlsched.extras.shared.board import START, STOP, Board
from yamlsched.extras.shared.loop import (
    Executing,
    SharedLoop,
    Steps,
    Watchdog,
    current,
    is_coroutine_function,
    stream,
)
from yamlsched.extras.shared.protection import ProcessState, exit_fork, refuse_signals
from yamlsched.extras.shared.reporter import Reporter
from yamlsched.handler import calls
from yamlsched.handler.calls import payload_mismatch, read_payload, resolve, takes_run
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.worker import forking
from yamlsched.worker.local import bootstrap
from yamlsched.worker.local.child_pool import Environment
from yamlsched.worker.local.protocol import CLOSED_PIPES, FAILED_EXIT, Frames, TaskEnd

BEAT_SECONDS = 0.5
STOP_INTERVAL_SECONDS = 1.0  # between cancellations of a handler that catches them
# for tasks that a handler has left behind to end, once they are cancelled
LEFT_BEHIND_SECONDS = 3.0
MAX_LISTED_TASKS = 5
calls.OWN_FILES.update((__file__, inspect.getfile(Steps)))


class SharedChannel(NamedTuple):
    """The child's side of its connection to the parent."""

    commands: int
    results: int
    output: int
    board: Board


@dataclass(frozen=True)
class Streams:
    """The streams of a child; ``on_output`` is set once there is a runner."""

    runner: list[SharedRunner]

    def create(self) -> tuple[Any, Any]:
        def on_output(executing: Executing) -> None:
            self.runner[0].reporter.on_output(executing)

        return stream(1, on_output), stream(2, on_output)


def run(parent: int, channel: SharedChannel, environment: Environment) -> NoReturn:
    """Become a child that executes attempts as coroutines. ``parent`` is the worker's
    process id.
    """
    streams = Streams([])
    try:
        bootstrap.set_up(parent, channel.output, channel[:2], environment, streams.create)
        runner = SharedRunner(channel, environment)
        streams.runner.append(runner)
    except BaseException as error:
        bootstrap.fail(error)
    runner.main()


class SharedRunner:
    """One shared child, from fork to exit."""

    def __init__(self, channel: SharedChannel, environment: Environment) -> None:
        self.channel, self.board = channel, channel.board
        workload = environment.workload
        self.sessions = SharedSessions(workload.dsn, workload.namespace)
        self.pid = os.getpid()
        self.loop = SharedLoop()
        self.loop.protect(self.board, self._on_exception)
        self.watchdog = Watchdog(self.board)
        self.handlers: dict[str, Callable[..., Any]] = {}  # that have been imported
        self.redact = redactor(workload.dsn)
        self.executing: dict[int, Executing] = {}
        self.waiting: dict[
            int, Any
        ] = {}  # tasks that are to start when others have ended, by index
        self.limit = 1  # of what executes at once
        self.frames = Frames()
        self.reporter = Reporter(channel.results, self.loop, self._exit)
        self.is_beating = self.is_starting = self.is_restoring = False
        self.idle_beats = 0

    def main(self) -> NoReturn:
        """Execute tasks until the parent closes the pipe. Whatever happens, the
        process ends here.
        """
        try:
            os.register_at_fork(after_in_child=self._leave_in_fork)
            refuse_signals()
            forking.reset_signals_in_forks()
            self.state = ProcessState()
            self.watchdog.start()
            os.set_blocking(self.channel.results, False)
            self.loop.add_reader(self.channel.commands, self._receive)
            self.board.set_ready()
            while True:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:  # of a task, which has reported it
                    if os.getpid() != self.pid:
                        exit_fork(error)
                    self.board.leave()
        except BaseException as error:
            self._exit(error)

    def _exit(self, error: BaseException) -> NoReturn:
        """End the process: its event loop or a pipe has failed. The parent finds out whose code
        executed last.
        """
        if os.getpid() != self.pid:
            print(
                "yamlsched: a forked process cannot await: the event loop is its parent's",
                file=sys.stderr,
            )
            os._exit(1)
        stepped = self.loop.selector.stepped
        if len(stepped) == 1:
            self.board.enter(stepped.pop())
        with contextlib.suppress(OSError):
            os.write(
                2, f"yamlsched: a child process exits: {type(error).__name__}: {error}\n".encode()
            )
        os._exit(
            CLOSED_PIPES
            if isinstance(error, OSError) and error.errno == errno.EBADF
            else FAILED_EXIT
        )

    # -- from the parent ---------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            piece = os.read(self.channel.commands, 1 << 18)
        except OSError as error:
            self._exit(error)
        if not piece:
            plugins.answers("process_exiting")
            os._exit(0)
        for kind, *content in self.frames.feed(piece):
            if kind == START:
                self.limit, tasks = content
                self.waiting.update((task[0], task) for task in tasks)
                self._start_waiting()
            elif kind == STOP:
                for index in content[0]:
                    self._stop(index)
            else:
                self._return(list(self.waiting))

    def _start_waiting(self) -> None:
        if self.is_starting:
            return  # one that cannot be imported ends at once, and calls this
        self.is_starting = True
        while self.waiting and len(self.executing) < self.limit:
            self._start(*self.waiting.pop(next(iter(self.waiting))))
        self.is_starting = False

    def _return(self, indexes: list[int]) -> None:
        """Return tasks that have not started."""
        for index in indexes:
            del self.waiting[index]
        self.reporter.give_back(indexes)

    def _start(
        self, index: int, path: str, payload: str, timeout: float, values: tuple[Any, ...]
    ) -> None:
        """Have the handler at ``path`` called soon. ``timeout`` is in seconds, ``values`` are those
        of a ClaimedRun.
        """
        executing = self.executing[index] = Executing(index, self._report, self._on_exit)
        if not self.is_beating:
            self.is_beating = True
            self.watchdog.busy.set()
            self.loop.call_later(BEAT_SECONDS, self._beat)
        handler = self.handlers.get(path)
        if handler is None:
            self.board.set_state(index, states.STARTED)
            self._restore()
            self.board.enter(index, is_import=True)
            try:
                handler = self.handlers[path] = self.loop.base_context.run(_import, executing, path)
            except BaseException as error:
                if os.getpid() != self.pid:
                    exit_fork(error)
                end = calls.raised(error, None)
                if (on_end := self._note_start(values)) is not None:
                    on_end(end)
                self._finish(executing, end)
                return
            finally:
                self.board.leave()
            if os.getpid() != self.pid:
                exit_fork(None)
            self.state.note()
        context = self.loop.base_context.copy()  # no run sees what another one has set
        context.run(current.set, executing)
        self.loop.create_task(
            self._execute(executing, handler, path, payload, timeout, values), context=context
        )

    def _stop(self, index: int) -> None:
        """Cancel the handler at ``index``, and again while it catches that: the parent kills what
        does not end.
        """
        if index in self.waiting:
            self._return([index])
            return
        executing = self.executing.get(index)
        if executing is None or executing.has_ended or executing.task is None:
            return
        if not executing.is_called:
            executing.was_stopped = True
            executing.task.cancel()
            self._finish(
                executing,
                calls.raised(calls.Stopped("stopped by yamlsched before it started"), None),
            )
            return
        executing.was_stopped = True
        executing.task.cancel("stopped by yamlsched")
        self.loop.call_later(STOP_INTERVAL_SECONDS, self._stop_again, executing)

    def _stop_again(self, executing: Executing) -> None:
        if self.executing.get(executing.index) is executing:
            self._stop(executing.index)

    # -- an attempt --------------------------------------------------------------------------------

    async def _execute(
        self,
        executing: Executing,
        handler: Callable[..., Any],
        path: str,
        payload: str,
        timeout: float,
        values: tuple[Any, ...],
    ) -> None:
        executing.is_called = True
        self.board.set_state(executing.index, states.STARTED)
        on_end = self._note_start(values)
        end = await self._attempt(
            executing, handler, path, payload, timeout, ClaimedRun._make(values)
        )
        if on_end is not None:
            on_end(end)
        self._finish(executing, end)

    def _note_start(self, values: tuple[Any, ...]) -> Callable[[AttemptEnd | None], None] | None:
        """Tell plugins that an attempt starts, and return what they want to be told at its end."""
        return plugins.start(
            "handler_started",
            run=ClaimedRun._make(values),
            namespace=self.sessions.namespace,
            redact=self.redact,
        )

    async def _attempt(
        self,
        executing: Executing,
        handler: Callable[..., Any],
        path: str,
        text: str,
        timeout: float,
        claimed: ClaimedRun,
    ) -> AttemptEnd | None:
        """Call the handler; return None if it returned nothing and there is nothing else to report.

        Any exception is caught here: each is the end of the attempt.
        """
        run = None
        try:
            payload = {} if text == "{}" else read_payload(text)
            if not is_coroutine_function(handler):
                why = f"{path} is not an async def, which a queue with mode: async requires"
                return AttemptEnd(EndKind.DISCARDED, why, "NotAsync")
            if takes_run(handler):
                run = calls.make_run(
                    claimed, payload, self._backend(executing.index, claimed, timeout)
                )
            if mismatch := payload_mismatch(handler, path, tuple(payload), run is not None):
                return AttemptEnd(EndKind.DISCARDED, mismatch, "PayloadMismatch")
            value = await (handler(**payload) if run is None else handler(**payload, run=run))
            if os.getpid() != self.pid:
                exit_fork(None)  # the handler forked, and this is its child
            return calls.returned(value, run, executing.was_stopped)
        except BaseException as error:
            if os.getpid() != self.pid:
                exit_fork(error)
            return calls.raised(error, run)

    def _backend(self, index: int, run: ClaimedRun, timeout: float) -> SharedBackend:
        sessions = self.sessions
        return SharedBackend(
            sessions.dsn,
            sessions.namespace,
            run.id,
            run.attempt,
            run.locked_by,
            timeout,
            report=self.board.progress.reporter(index, run),
            sessions=sessions,
        )

    def _finish(self, executing: Executing, end: AttemptEnd | None) -> None:
        """End the attempt, once the tasks that its handler has left behind have ended, which are
        cancelled.
        """
        executing.has_ended, executing.end = True, end
        executing.took = time.perf_counter() - executing.started
        if executing.calls:
            self.loop.call_later(LEFT_BEHIND_SECONDS, self._check_threads, executing)
        if not executing.others:
            self._report(executing)
            return
        names = sorted(
            str(getattr(task.get_coro(), "__qualname__", task.get_name()))
            for task in executing.others
        )
        listed = ", ".join([*names[:MAX_LISTED_TASKS], *["..."] * (len(names) > MAX_LISTED_TASKS)])
        remedy = "; what is to outlive a run is started with yamlsched.detached()"
        self.reporter.print(
            executing, f"yamlsched: cancelled what the handler had left running: {listed}{remedy}\n"
        )
        for task in list(executing.others):
            task.cancel("its handler has ended")
        self.loop.call_later(LEFT_BEHIND_SECONDS, self._report_left_behind, executing)

    def _report_left_behind(self, executing: Executing) -> None:
        if not executing.is_reported:
            self.reporter.print(
                executing, "yamlsched: it did not end, and this process is replaced\n"
            )
            self.reporter.is_leaking = True
            self._report(executing)

    def _check_threads(self, executing: Executing) -> None:
        """Have this process replaced if a thread of an attempt that has ended goes on: nothing can
        stop it.
        """
        if any(not call.cancel() and not call.done() for call in tuple(executing.calls)):
            self.reporter.is_leaking = True
            self.reporter.flush_soon()

    def _report(self, executing: Executing) -> None:
        executing.is_reported, index = True, executing.index
        del self.executing[index]
        if not self.is_restoring:
            self.is_restoring = True
            self.loop.call_soon(self._restore)  # once for all that end in this iteration
        if executing.end is None:
            self.board.set_state(index, states.SUCCEEDED)
            self.reporter.add_success(index, executing.took)
            if self.executing:
                self._start_waiting()
                self.reporter.flush_later()
                return
        else:
            self.board.set_state(index, states.ENDED)
            self.reporter.add(TaskEnd(index, executing.end, executing.took))
        self._start_waiting()
        self.reporter.flush_soon()

    def _restore(self) -> None:
        """Undo what the handlers that have ended did to the process; have it replaced if that is
        impossible.
        """
        self.is_restoring = False
        if not self.state.restore():
            self.reporter.is_leaking = True
            self.reporter.flush_soon()

    def _on_exit(self, executing: Executing, error: BaseException) -> None:
        self.reporter.print(
            executing,
            "".join(["a task of the handler has raised\n", *traceback.format_exception(error)]),
        )

    def _on_exception(self, context: dict[str, Any]) -> None:
        """Report an exception that a task or a callback has raised, and that is not awaited."""
        error, task = context.get("exception"), context.get("task") or context.get("future")
        steps = getattr(task, "get_coro", lambda: None)()
        executing = steps.executing if isinstance(steps, Steps) else current.get()
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return  # see _on_exit
        lines = [
            f"{context.get('message')}\n",
            *(traceback.format_exception(error) if error is not None else ()),
        ]
        if executing is None or executing.is_reported:
            sys.stderr.write("".join(lines))
        else:
            self.reporter.print(executing, "".join(lines))

    # -- regularly ---------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Show that the loop is not blocked, while there are attempts; close sessions that are
        idle.
        """
        self.board.leave()
        self.sessions.close_idle(self.loop, is_all=not self.executing)
        self.idle_beats = 0 if self.executing else self.idle_beats + 1
        if self.idle_beats < 4:
            self.loop.call_later(BEAT_SECONDS, self._beat)
        else:
            self.is_beating = False
            self.watchdog.busy.clear()

    def _leave_in_fork(self) -> None:
        """In a process that a handler forked: leave the child's pipes and its event loop alone."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (self.channel.commands, self.channel.results):
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
        self.loop.leave_in_fork()
        for executing in self.executing.values():
            # what it prints goes to the descriptors: this process reports nothing
            executing.is_reported = True


def _import(executing: Executing, path: str) -> Callable[..., Any]:
    """Import a handler. What its module prints belongs to the attempt, what it sets to
    the context.
    """
    token = current.set(executing)
    try:
        return resolve(path)
    finally:
        current.reset(token)
