"""The child that executes many attempts at once, as coroutines of one event loop."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from yamlsched.errors import Discard, YamlschedError
from yamlsched.handler import calls
from yamlsched.handler.calls import resolve
from yamlsched.handler.loop_sessions import LoopBackend, LoopSessions
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.worker import forking
from yamlsched.worker.attempt import Workload
from yamlsched.worker.local import protocol
from yamlsched.worker.local.loop import (
    INSTEAD,
    ChildLoop,
    Executing,
    Steps,
    current,
    is_coroutine_function,
)
from yamlsched.worker.local.process_state import ProcessState
from yamlsched.worker.local.protocol import CLOSED_PIPES, FAILED_EXIT, TASKS, Channel, Task, TaskEnd
from yamlsched.worker.local.reporter import Reporter
from yamlsched.worker.local.runner import HandlerCall, Runner
from yamlsched.worker.local.watchdog import Watchdog

BEAT_SECONDS = 0.5
STOP_INTERVAL_SECONDS = 1.0  # between cancellations of a handler that catches them
# for tasks that a handler has left behind to end, once they are cancelled
LEFT_BEHIND_SECONDS = 3.0
MAX_LISTED_TASKS = 5
REFUSED_SIGNALS = {
    "signal": f"catch asyncio.CancelledError, which stops a coroutine, or {INSTEAD}",
    "siginterrupt": INSTEAD,
    "set_wakeup_fd": INSTEAD,
    "alarm": f"use asyncio.timeout(), or {INSTEAD}",
    "setitimer": f"use asyncio.timeout(), or {INSTEAD}",
}
"""The functions of the module ``signal`` that are refused, and what to use instead."""
calls.OWN_FILES.update((__file__, inspect.getfile(Steps)))


class CoroutineRunner(Runner):
    """A child of coroutines. ``parent`` is the worker's process id."""

    def __init__(self, channel: Channel, workload: Workload, parent: int) -> None:
        super().__init__(channel, workload)
        self.sessions = LoopSessions(self.dsn, self.namespace)
        self.create_backend = partial(LoopBackend, sessions=self.sessions)
        self.loop = ChildLoop(self.memory, self._on_exception)
        self.executing: dict[int, Executing] = {}
        self.reporter = Reporter(channel.results, self.loop, self._fail)
        self.is_restoring = False
        os.register_at_fork(after_in_child=self._leave_in_fork)
        refuse_signals()
        forking.reset_signals_in_forks()
        self.state = ProcessState(parent, is_shared=True)

    def main(self) -> NoReturn:
        try:
            self._beat()
            Watchdog(self.memory).start()
            self.loop.add_reader(self.channel.commands, self._receive)
            self.memory.set_ready()
            while True:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:  # of a task, which has reported it
                    if os.getpid() != self.pid:
                        calls.exit_fork(error)
                    self.memory.leave()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """End the process: its event loop or a pipe has failed."""
        if os.getpid() != self.pid:
            print(
                "yamlsched: a forked process cannot await: the event loop is its parent's",
                file=sys.stderr,
            )
            os._exit(1)
        is_closed = isinstance(error, OSError) and error.errno == errno.EBADF
        self.exit(error, CLOSED_PIPES if is_closed else FAILED_EXIT)

    def _receive(self) -> None:
        try:
            received = self.receive()
        except OSError as error:
            self._fail(error)
        for kind, content in received:
            for each in content:
                if kind == TASKS:
                    self._start(each)
                else:
                    self._stop(self.executing.get(each))

    # -- an attempt --------------------------------------------------------------------------------

    def _start(self, task: Task) -> None:
        """Have the handler of ``task`` called soon."""
        call = HandlerCall(self, task)
        executing = Executing(call, self)
        self.executing[call.index] = executing
        if call.path not in self.handlers and self.memory.start(call.index):
            try:
                call.load()  # before the context is copied, to which its module may add
            except BaseException as error:
                self._finish(executing, call.raised(error))
                return
        context = self.loop.base_context.copy()  # no run sees what another one has set
        context.run(current.set, executing)
        self.loop.create_task(self._execute(executing), context=context)

    async def _execute(self, executing: Executing) -> None:
        executing.is_called = True
        if self.memory.start(executing.index):
            self._finish(executing, await self._attempt(executing.call))
        else:
            executing.is_reported = True
            del self.executing[executing.index]
            self.reporter.add(TaskEnd(executing.index, None))

    async def _attempt(self, call: HandlerCall) -> AttemptEnd | None:
        """Call the handler; return None if it returned nothing and there is nothing else to report.

        Any exception is caught here: each is the end of the attempt.
        """
        try:
            if (end := call.prepare()) is not None:
                return end
            return call.returned(await call())
        except BaseException as error:
            return call.raised(error)

    def import_handler(self, call: HandlerCall) -> Callable[..., Any]:
        """Import a handler. What its module prints belongs to the attempt, what it sets to all."""
        executing = self.executing[call.index]
        self.memory.enter(call.index, is_import=True)
        try:
            handler = self.loop.base_context.run(_import, executing, call.path)
        finally:
            self.memory.leave()
        if os.getpid() != self.pid:
            calls.exit_fork(None)
        if not is_coroutine_function(handler):
            raise NotAsync(
                f"{call.path} is not an async def, which a queue with mode: async requires"
            )
        return handler

    def _stop(self, executing: Executing | None) -> None:
        """Cancel a handler, and again while it catches that: the parent kills what does not end."""
        if executing is None or executing.has_ended:
            return
        if executing.is_called and executing.task is not None:
            executing.call.was_stopped = True
            executing.task.cancel("stopped by yamlsched")
        # a task that is cancelled before its first step would end unnoticed
        seconds = STOP_INTERVAL_SECONDS if executing.is_called else 0.0
        self.loop.call_later(seconds, self._stop, executing)

    def _finish(self, executing: Executing, end: AttemptEnd | None) -> None:
        """End the attempt, once the tasks that its handler has left behind have ended, which are
        cancelled.
        """
        executing.call.finish(end)
        executing.has_ended, executing.end = True, end
        executing.took = time.perf_counter() - executing.call.started
        if executing.calls:
            self.loop.call_later(LEFT_BEHIND_SECONDS, self._check_threads, executing)
        if not executing.others:
            self.report(executing)
            return
        names = sorted(
            str(getattr(task.get_coro(), "__qualname__", task.get_name()))
            for task in executing.others
        )
        listed = ", ".join([*names[:MAX_LISTED_TASKS], *["..."] * (len(names) > MAX_LISTED_TASKS)])
        remedy = "; what is to outlive a run is started with yamlsched.detached()"
        executing.print(
            f"yamlsched: cancelled what the handler had left running: {listed}{remedy}\n"
        )
        for task in list(executing.others):
            task.cancel("its handler has ended")
        self.loop.call_later(LEFT_BEHIND_SECONDS, self._report_left_behind, executing)

    def _report_left_behind(self, executing: Executing) -> None:
        if not executing.is_reported:
            executing.print("yamlsched: it did not end, and this process is replaced\n")
            self.reporter.retire()
            self.report(executing)

    def _check_threads(self, executing: Executing) -> None:
        """Have this process replaced if a thread of an attempt that has ended goes on: nothing can
        stop it.
        """
        if any(not call.cancel() and not call.done() for call in tuple(executing.calls)):
            self.reporter.retire()

    def report(self, executing: Executing) -> None:
        executing.is_reported, index, end = True, executing.index, executing.end
        del self.executing[index]
        if not self.is_restoring:
            self.is_restoring = True
            self.loop.call_soon(self._restore)  # once for all that end in this iteration
        self.memory.end(index, protocol.ENDED if end is not None else protocol.SUCCEEDED)
        import_seconds = executing.call.import_seconds
        if end is None and not import_seconds:
            self.reporter.add_success(index, executing.took)
        else:
            end = end or AttemptEnd(EndKind.RETURNED)
            self.reporter.add(TaskEnd(index, end, executing.took, import_seconds))

    def _restore(self) -> None:
        """Undo what the handlers that have ended did to the process; have it replaced if that is
        impossible.
        """
        self.is_restoring = False
        if not self.state.restore():
            self.reporter.retire()

    # -- other tasks of handlers -------------------------------------------------------------------

    def on_exit(self, executing: Executing, error: BaseException) -> None:
        executing.print(
            "".join(["a task of the handler has raised\n", *traceback.format_exception(error)])
        )

    def _on_exception(self, context: dict[str, Any]) -> None:
        """Report an exception that a task or a callback has raised, and that is not awaited."""
        error, task = context.get("exception"), context.get("task") or context.get("future")
        steps = getattr(task, "get_coro", lambda: None)()
        executing = steps.executing if isinstance(steps, Steps) else current.get()
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return  # see _on_exit
        stack = traceback.format_exception(error) if error is not None else ()
        text = "".join([f"{context.get('message')}\n", *stack])
        if executing is None or executing.is_reported:
            sys.stderr.write(text)
        else:
            executing.print(text)

    # -- the process -------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Show that the loop is not blocked, and close sessions that are idle."""
        self.memory.leave()
        self.sessions.close_idle(self.loop, is_all=not self.executing)
        self.loop.call_later(BEAT_SECONDS, self._beat)

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


class NotAsync(Discard):
    """A handler is not an ``async def``."""


def _import(executing: Executing, path: str) -> Callable[..., Any]:
    token = current.set(executing)
    try:
        return resolve(path)
    finally:
        current.reset(token)


def refuse_signals() -> None:
    """Have functions that change signals and timers raise, for the rest of this process; not in
    forks of it.
    """
    originals = {name: getattr(signal, name) for name in REFUSED_SIGNALS}
    for name, instead in REFUSED_SIGNALS.items():
        message = f"signal.{name}() changes a process that other runs share: {instead}"
        setattr(signal, name, _refusal(message))
    os.register_at_fork(after_in_child=lambda: vars(signal).update(originals))


def _refusal(message: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise YamlschedError(message)

    return refuse
