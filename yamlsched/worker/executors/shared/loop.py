"""The event loop of a shared child, protected from what one handler could do to all of them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from yamlsched.errors import YamlschedError
from yamlsched.handling.detached import is_detached
from yamlsched.worker.executors.shared.streams import current

if TYPE_CHECKING:
    from yamlsched.worker.executors.shared.board import Board
    from yamlsched.worker.executors.shared.executing import Executing


MAX_THREADS = 256  # of asyncio.to_thread and the like, of all attempts: a thread is started when it is needed
MAX_RESOLVER_THREADS = 16  # for look-ups of names, so that calls that hang cannot stop them


class SharedLoop(asyncio.SelectorEventLoop):
    """An event loop that handlers cannot stop or reconfigure."""

    def __init__(self) -> None:
        super().__init__()
        self.base_context = contextvars.copy_context()  # what modules have set, and no run
        self.stepping: Executing | None = None  # the attempt whose code is executing
        self._threads = ThreadPoolExecutor(MAX_THREADS, "asyncio")
        self._resolver = ThreadPoolExecutor(MAX_RESOLVER_THREADS, "resolver")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call ``func`` in a thread. The attempt knows of it: a thread cannot be cancelled."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        call = self._threads.submit(func, *args)
        if (executing := current.get() or self.stepping) is not None:
            executing.calls.add(call)
            call.add_done_callback(executing.calls.discard)
        return asyncio.wrap_future(call, loop=self)

    async def getaddrinfo(self, *args: Any, **named: Any) -> Any:
        return await self.run_in_executor(self._resolver, partial(socket.getaddrinfo, *args, **named))

    async def getnameinfo(self, *args: Any) -> Any:
        return await self.run_in_executor(self._resolver, socket.getnameinfo, *args)

    async def shutdown_default_executor(self, timeout: float | None = None) -> NoReturn:
        raise _refused("have its threads shut down")

    def set_default_executor(self, executor: Any) -> NoReturn:
        raise _refused("get other threads")

    def stop(self) -> None:
        raise _refused("be stopped")

    def close(self) -> None:
        raise _refused("be closed")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise _refused("handle signals")

    def set_task_factory(self, factory: Any) -> NoReturn:
        raise _refused("get another task factory")

    def set_exception_handler(self, handler: Any) -> NoReturn:
        raise _refused("get another exception handler")

    def protect(self, board: Board, on_exception: Callable[[dict[str, Any]], None]) -> None:
        """Have each step of a coroutine noted on ``board``, and exceptions of tasks and callbacks passed on."""

        def create_task(
            loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None, **named: Any
        ) -> asyncio.Task[Any]:
            variables = contextvars.copy_context() if context is None else context
            # a task with a context of its own belongs to the attempt that creates it
            executing = None if variables.get(is_detached) else variables.get(current) or self.stepping
            if executing is None:
                return asyncio.Task(coroutine, loop=loop, context=context, **named)
            task = asyncio.Task(Steps(coroutine, board, executing, self), loop=loop, context=context, **named)
            executing.add(task)
            return task

        super().set_task_factory(create_task)
        super().set_exception_handler(lambda _, context: on_exception(context))

    def leave_in_fork(self) -> None:
        """In a process that a handler forked: make the inherited loop useless, before it takes the child's events."""
        null = os.open(os.devnull, os.O_RDWR)
        descriptors = [self._ssock.fileno(), self._csock.fileno()]  # type: ignore[attr-defined]
        if (fileno := getattr(self._selector, "fileno", None)) is not None:  # type: ignore[attr-defined]
            descriptors.append(fileno())
        for descriptor in descriptors:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine of an attempt. While its code executes, the board says so."""

    __slots__ = ("_board", "_coroutine", "_index", "_loop", "executing")

    def __init__(self, coroutine: Any, board: Board, executing: Executing, loop: SharedLoop) -> None:
        self._coroutine, self._board, self._index = coroutine, board, executing.index
        self.executing, self._loop = executing, loop

    def send(self, value: Any) -> Any:
        self._board.enter(self._index)
        self._loop.stepping = self.executing
        try:
            return self._coroutine.send(value)
        except (SystemExit, KeyboardInterrupt) as error:  # which end the loop: not all of its tasks see why
            self.executing.on_exit(self.executing, error)
            raise
        finally:
            self._loop.stepping = None
            self._board.leave()

    def throw(self, *error: Any) -> Any:
        self._board.enter(self._index)
        self._loop.stepping = self.executing
        try:
            return self._coroutine.throw(*error)
        finally:
            self._loop.stepping = None
            self._board.leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        found: Generator[Any, Any, Any] = self._coroutine.__await__()
        return found

    def __getattr__(self, name: str) -> Any:  # what debuggers and reprs ask for: cr_frame, cr_code, __qualname__
        return getattr(self._coroutine, name)


def _refused(what: str) -> YamlschedError:
    return YamlschedError(
        f"the event loop is shared with other runs and cannot {what}: write isolation: process for this job"
    )
