"""The event loop of a shared child, protected from what one handler could do to all of them, and
its output.

What a coroutine writes to stdout and stderr goes to the output of its own attempt, which is found
by the context: tasks inherit it, and so do the threads of ``asyncio.to_thread``. What is written
outside of every attempt, or to the descriptors themselves, goes to the pipe of the child. A
watchdog kills a child whose loop is blocked.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import io
import os
import selectors
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType
from typing import Any, NoReturn

from yamlsched.errors import YamlschedError
from yamlsched.extras.shared.board import Board, LoopStep
from yamlsched.handler.detached import is_detached
from yamlsched.runs.lifecycle import AttemptEnd

current: ContextVar[Executing | None] = ContextVar("yamlsched_attempt", default=None)


class _Bytes(io.RawIOBase):
    """The bytes below one of the two streams."""

    def __init__(self, descriptor: int, on_output: Callable[[Executing], None]) -> None:
        self._descriptor, self._on_output = descriptor, on_output

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        content = bytes(content)
        executing = current.get()
        if executing is None or executing.is_reported:
            os.write(self._descriptor, content)
        elif content:
            executing.output.append(content)
            executing.output_bytes += len(content)
            self._on_output(executing)
        return len(content)

    def fileno(self) -> int:
        return self._descriptor


def stream(descriptor: int, on_output: Callable[[Executing], None]) -> io.TextIOWrapper:
    """Return the stream that replaces ``sys.stdout`` or ``sys.stderr``; it buffers nothing."""
    raw: Any = _Bytes(descriptor, on_output)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


# of asyncio.to_thread and the like, of all attempts: a thread is started when it is needed
MAX_THREADS = 256
MAX_RESOLVER_THREADS = 16  # for look-ups of names, so that calls that hang cannot stop them


class Selector(selectors.DefaultSelector):
    """Forgets the attempts of the last iteration of the loop, each time that its descriptors were
    found intact.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stepped: set[int] = set()  # indexes of attempts

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(timeout)
        self.stepped.clear()
        return events


class SharedLoop(asyncio.SelectorEventLoop):
    """An event loop that handlers cannot stop or reconfigure."""

    is_protected = False

    def __init__(self) -> None:
        self.selector = Selector()
        super().__init__(self.selector)
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
        return await self.run_in_executor(
            self._resolver, partial(socket.getaddrinfo, *args, **named)
        )

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

    def set_debug(self, enabled: bool) -> None:
        if self.is_protected:
            raise _refused("log its callbacks")
        super().set_debug(enabled)

    async def shutdown_asyncgens(self) -> NoReturn:
        raise _refused("have its generators closed")

    def set_task_factory(self, factory: Any) -> NoReturn:
        raise _refused("get another task factory")

    def set_exception_handler(self, handler: Any) -> NoReturn:
        raise _refused("get another exception handler")

    def protect(self, board: Board, on_exception: Callable[[dict[str, Any]], None]) -> None:
        """Have each step of a coroutine noted on ``board``, and exceptions of tasks and callbacks
        passed on.
        """

        def create_task(
            loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None, **named: Any
        ) -> asyncio.Task[Any]:
            variables = contextvars.copy_context() if context is None else context
            # a task with a context of its own belongs to the attempt that creates it
            executing = (
                None if variables.get(is_detached) else variables.get(current) or self.stepping
            )
            if executing is None:
                return asyncio.Task(coroutine, loop=loop, context=context, **named)
            task = asyncio.Task(
                Steps(coroutine, board, executing, self), loop=loop, context=context, **named
            )
            executing.add(task)
            return task

        super().set_task_factory(create_task)
        super().set_exception_handler(lambda _, context: on_exception(context))
        self.is_protected = True

    def leave_in_fork(self) -> None:
        """In a process that a handler forked: make the inherited loop useless, before it takes the
        child's events.

        It executes nothing more: a step of another run would be executed twice.
        """
        self._ready: deque[Any] = deque(maxlen=0)
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

    def __init__(
        self, coroutine: Any, board: Board, executing: Executing, loop: SharedLoop
    ) -> None:
        self._coroutine, self._board, self._index = coroutine, board, executing.index
        self.executing, self._loop = executing, loop

    def send(self, value: Any) -> Any:
        self._board.enter(self._index)
        self._loop.selector.stepped.add(self._index)
        self._loop.stepping = self.executing
        try:
            return self._coroutine.send(value)
        except (
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # which end the loop: not all of its tasks see why
            self.executing.on_exit(self.executing, error)
            raise
        finally:
            self._loop.stepping = None
            self._board.leave()

    def throw(self, *error: Any) -> Any:
        self._board.enter(self._index)
        self._loop.selector.stepped.add(self._index)
        self._loop.stepping = self.executing
        try:
            return self._coroutine.throw(*error)
        finally:
            self._loop.stepping = None
            self._board.leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self._coroutine.__await__()
        return steps

    # what debuggers and reprs ask for: cr_frame, cr_code, __qualname__
    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)


def _refused(what: str) -> YamlschedError:
    return YamlschedError(
        f"the event loop is shared with other runs and cannot {what}: use a queue with mode:"
        " process for this job"
    )


@dataclass(slots=True, eq=False)
class Executing:
    """The attempt at ``index``: its task, the tasks that its handler has created, and what it has
    printed.
    """

    index: int
    on_tasks_ended: Callable[
        [Executing], None
    ]  # called when its handler has ended, and all other tasks since
    on_exit: Callable[[Executing, BaseException], None]  # called when another task exits
    started: float = field(default_factory=time.perf_counter)
    task: asyncio.Task[Any] | None = None
    others: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: set[Future[Any]] = field(default_factory=set)  # in threads, which cannot be cancelled
    output: deque[bytes] = field(default_factory=deque)  # not sent yet; threads append to it
    output_bytes: int = 0
    # its task has been executed: before, a cancellation would end the task unnoticed
    is_called: bool = False
    was_stopped: bool = False
    has_ended: bool = False  # the handler; other tasks may be left
    end: AttemptEnd | None = None  # None: a plain success
    took: float = 0.0  # seconds
    is_reported: bool = False

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this attempt: the first one calls the handler."""
        if self.task is None:
            self.task = task
            return
        self.others.add(task)
        task.add_done_callback(self._on_done)
        if self.has_ended:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self.others.discard(task)
        if self.has_ended and not self.others and not self.is_reported:
            self.on_tasks_ended(self)


BLOCKED_SECONDS = 3.0  # for which one step of a coroutine may take
IMPORT_SECONDS = 60.0  # for which the import of a handler may take
INTERVAL_SECONDS = 0.25
MAX_FRAMES = 60
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Stall:
    """For how long a child has been seen in the same step.

    Intervals in which the observer itself was not executed do not count: the whole host may have
    stood still.
    """

    def __init__(self) -> None:
        self._step: LoopStep | None = None
        self._seen_at = 0.0
        self.seconds = 0.0

    def observe(self, step: LoopStep, now: float) -> None:
        if step != self._step:
            self._step, self.seconds = step, 0.0
        else:
            self.seconds += min(now - self._seen_at, 2 * INTERVAL_SECONDS)
        self._seen_at = now

    def is_over(self, margin: float = 0.0) -> bool:
        """Return whether the step takes too long, by more than ``margin`` seconds."""
        limit = (
            IMPORT_SECONDS if self._step is not None and self._step.is_import else BLOCKED_SECONDS
        )
        return self.seconds >= limit + margin


class Watchdog(threading.Thread):
    """Watches the thread that creates it, while ``busy`` is set."""

    def __init__(self, board: Board) -> None:
        super().__init__(name="yamlsched-watchdog", daemon=True)
        self.busy = threading.Event()
        self._board, self._watched = board, threading.get_ident()

    def run(self) -> None:
        stall = Stall()
        while True:
            self.busy.wait()
            time.sleep(INTERVAL_SECONDS)
            step = self._board.step()
            stall.observe(step, time.monotonic())
            if stall.is_over() and (frame := sys._current_frames().get(self._watched)) is not None:
                stack = handler_stack(frame)
                if self._board.step() == step:  # else it has ended this moment
                    self._board.write_note(f"{place(frame)}\n{stack}")
                    os.kill(os.getpid(), signal.SIGKILL)


def place(frame: FrameType) -> str:
    """Return file and line of the innermost frame that is the project's: neither a library's nor
    ours.
    """
    current: FrameType | None = frame
    while current is not None:
        file = current.f_code.co_filename
        if not file.startswith((*LIBRARIES, OWN_FOLDER, "<")):
            return f"{file}:{current.f_lineno}"
        current = current.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def handler_stack(frame: FrameType) -> str:
    """Return the stack of ``frame``, without our own frames and those of the event loop before the
    handler's.
    """
    stack = traceback.extract_stack(frame, limit=MAX_FRAMES)
    own = [place for place, each in enumerate(stack) if each.filename.startswith(OWN_FOLDER)]
    return "".join(traceback.format_list(stack[own[-1] + 1 if own else 0 :] or stack))


@cache
def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Return whether calling ``handler``, perhaps decorated, returns a coroutine, as far as can be
    known before.
    """
    return any(
        inspect.iscoroutinefunction(each)
        for each in (
            handler,
            inspect.unwrap(handler),
            getattr(handler, "__call__", None),  # noqa: B004
        )
    )
