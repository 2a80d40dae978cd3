"""The child that executes many attempts at once, as coroutines of one event loop."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from yamlsched.errors import Discard
from yamlsched.handler import calls
from yamlsched.handler.calls import resolve
from yamlsched.handler.loop_sessions import LoopBackend, LoopSessions
from yamlsched.runs.lifecycle import AttemptEnd
from yamlsched.worker.attempt import Workload
from yamlsched.worker.local import protocol
from yamlsched.worker.local.loop import (
    INSTEAD,
    ChildLoop,
    Executing,
    Steps,
    current,
    is_coroutine_function,
    refusal,
)
from yamlsched.worker.local.process_state import ProcessState
from yamlsched.worker.local.protocol import (
    CLOSED_PIPES,
    DUMP_SIGNAL,
    FAILED_EXIT,
    NONE,
    TASKS,
    Channel,
    Task,
)
from yamlsched.worker.local.runner import HandlerCall, Runner

BEAT_SECONDS = 0.5
STOP_INTERVAL_SECONDS = 1.0  # between cancellations of a handler that catches them
# for tasks that a handler has left behind to end, once they are cancelled
LEFT_BEHIND_SECONDS = 3.0
MAX_UNSENT_BYTES = 1 << 18  # of output: more is sent at once
SEND_SECONDS = 0.004  # for which reports are collected
REFUSED: dict[ModuleType, dict[str, str]] = {
    signal: {
        "signal": f"catch asyncio.CancelledError, which stops a coroutine, or {INSTEAD}",
        "siginterrupt": INSTEAD,
        "set_wakeup_fd": INSTEAD,
        "alarm": f"use asyncio.timeout(), or {INSTEAD}",
        "setitimer": f"use asyncio.timeout(), or {INSTEAD}",
    },
    os: dict.fromkeys(("fork", "forkpty"), f'use multiprocessing with "spawn", or {INSTEAD}'),
}
"""The functions that are refused, and what to use instead. A fork would execute steps of other runs
a second time.
"""
calls.OWN_FILES.update((__file__, inspect.getfile(Steps)))


class CoroutineRunner(Runner):
    """A child of coroutines. ``parent`` is the worker's process id."""

    def __init__(self, channel: Channel, workload: Workload, parent: int) -> None:
        super().__init__(channel, workload)
        self.sessions = LoopSessions(self.dsn, self.namespace)
        self.create_backend = partial(LoopBackend, sessions=self.sessions)
        self.loop = ChildLoop(self.memory, self._on_exception)
        self.executing: dict[int, Executing] = {}
        self.thread = threading.get_ident()
        self.printing: dict[int, Executing] = {}  # attempts with unsent output
        self.unsent_bytes = 0  # of output
        self.send_timer: asyncio.TimerHandle | None = None
        self.is_restoring = False
        faulthandler.register(DUMP_SIGNAL, channel.stack, all_threads=False)
        for module, names in REFUSED.items():
            for name, instead in names.items():
                setattr(module, name, refusal(f"{module.__name__}.{name}", instead))
        self.state = ProcessState(parent, is_shared=True)

    def main(self) -> NoReturn:
        try:
            self._beat()
            self.loop.add_reader(self.channel.commands, self._receive)
            self.memory.shared.is_ready = True
            while True:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of a callback
                    self.memory.enter(NONE)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """End the process: its event loop or a pipe has failed."""
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
        executing = self.executing[task[0]] = Executing(self, task)
        if executing.path not in self.handlers and self.memory.start(executing.index):
            try:
                executing.load()  # before the context is copied, to which its module may add
            except BaseException as error:
                self._finish(executing, executing.raised(error))
                return
        context = self.loop.base_context.copy()  # no run sees what another one has set
        context.run(current.set, executing)
        self.loop.create_task(self._execute(executing), context=context)

    async def _execute(self, executing: Executing) -> None:
        executing.is_called = True
        if self.memory.start(executing.index):
            self._finish(executing, await self._attempt(executing))
        else:
            executing.is_reported = True
            del self.executing[executing.index]
            self.put(protocol.WITHDRAWN, executing.index)
            self._send_soon()

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
            self.memory.enter(NONE)
        if not is_coroutine_function(handler):
            raise Discard(
                f"{call.path} is not an async def, which a queue with mode: async requires"
            )
        return handler

    def _stop(self, executing: Executing | None) -> None:
        """Cancel a handler, and again while it catches that: the parent kills what does not end."""
        if executing is None or executing.has_ended:
            return
        if executing.is_called and executing.task is not None:
            executing.was_stopped = True
            executing.task.cancel("stopped by yamlsched")
        # a task that is cancelled before its first step would end unnoticed
        seconds = STOP_INTERVAL_SECONDS if executing.is_called else 0.0
        self.loop.call_later(seconds, self._stop, executing)

    def _finish(self, executing: Executing, end: AttemptEnd | None) -> None:
        """End the attempt, once the tasks that its handler has left behind have ended, which are
        cancelled.
        """
        executing.finish(end)
        executing.has_ended, executing.end = True, end
        executing.took = time.perf_counter() - executing.started
        if executing.others or executing.calls:
            self.loop.call_later(LEFT_BEHIND_SECONDS, self._check_left_behind, executing)
        if not executing.others:
            self.report_end(executing)
            return
        names = {str(getattr(task.get_coro(), "__qualname__", "")) for task in executing.others}
        executing.print(
            f"yamlsched: cancelled tasks that the handler left running: {', '.join(sorted(names))}."
            " To let a task outlive its run, start it with yamlsched.detached()\n"
        )
        for task in list(executing.others):
            task.cancel("its handler has ended")

    def _check_left_behind(self, executing: Executing) -> None:
        """Have this process replaced if a task or a thread of an attempt that has ended goes on:
        nothing can stop it.
        """
        if not executing.is_reported:
            executing.print("yamlsched: a task did not end, so this process is replaced\n")
            self._retire()
            self.report_end(executing)
        elif any(not call.cancel() and not call.done() for call in tuple(executing.calls)):
            self._retire()

    def report_end(self, executing: Executing) -> None:
        executing.is_reported = True
        del self.executing[executing.index]
        if not self.is_restoring:
            self.is_restoring = True
            self.loop.call_soon(self._restore)  # once for all that end in this iteration
        self._put_output(executing)
        self.report(executing.index, executing.end, executing.took)
        self._send_soon()

    def _restore(self) -> None:
        """Undo what the handlers that have ended did to the process; have it replaced if that is
        impossible.
        """
        self.is_restoring = False
        if not self.state.restore():
            self._retire()

    # -- reports -----------------------------------------------------------------------------------

    def on_output(self, executing: Executing) -> None:
        """Send what ``executing`` has printed soon; called in any thread."""
        self.printing[executing.index] = executing
        if threading.get_ident() != self.thread:
            self.loop.call_soon_threadsafe(self._send_soon)
            return
        self.unsent_bytes += len(executing.output[-1])
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self.send()
        else:
            self._send_soon()

    def _put_output(self, executing: Executing) -> None:
        content = b"".join([executing.output.popleft() for _ in range(len(executing.output))])
        if content:
            self.put(protocol.OUTPUT, (executing.index, content))

    def _retire(self) -> None:
        """Have this process replaced."""
        self.put(protocol.RETIRE)
        self._send_soon()

    def _send_soon(self) -> None:
        if self.send_timer is None:
            self.send_timer = self.loop.call_later(SEND_SECONDS, self.send)

    def send(self) -> None:
        """Send what was printed and reported. While the parent does not read, nothing executes."""
        if self.send_timer is not None:
            self.send_timer.cancel()
            self.send_timer = None
        self.unsent_bytes = 0
        while self.printing:
            self._put_output(self.printing.popitem()[1])
        try:
            super().send()
        except OSError as error:
            self._fail(error)

    # -- other tasks of handlers -------------------------------------------------------------------

    def _on_exception(self, context: dict[str, Any]) -> None:
        """Report an exception that a task or a callback has raised, and that is not awaited."""
        error, task = context.get("exception"), context.get("task") or context.get("future")
        steps = getattr(task, "get_coro", lambda: None)()
        executing = steps.executing if isinstance(steps, Steps) else current.get()
        stack = traceback.format_exception(error) if error is not None else ()
        text = "".join([f"{context.get('message')}\n", *stack])
        if executing is None or executing.is_reported:
            sys.stderr.write(text)
        else:
            executing.print(text)

    # -- the process -------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Show that the loop is not blocked, and close sessions that are idle."""
        self.memory.enter(NONE)
        self.sessions.close_idle(self.loop, is_all=not self.executing)
        self.loop.call_later(BEAT_SECONDS, self._beat)


def _import(executing: Executing, path: str) -> Callable[..., Any]:
    token = current.set(executing)
    try:
        return resolve(path)
    finally:
        current.reset(token)
