"""The event loop of a child of coroutines, protected from what one handler could do to all of
them, and its output.

What a coroutine writes to stdout and stderr goes to the output of its own attempt, which is found
by the context: tasks inherit it, and so do the threads of ``asyncio.to_thread``. What is written
outside of every attempt, or to the descriptors themselves, goes to the pipe of the child.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import io
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from yamlsched.errors import YamlschedError
from yamlsched.handler.detached import is_detached
from yamlsched.runs.lifecycle import AttemptEnd
from yamlsched.worker.local.protocol import Memory
from yamlsched.worker.local.runner import HandlerCall

if TYPE_CHECKING:
    from yamlsched.worker.local.coroutines import CoroutineRunner

current: ContextVar[Executing | None] = ContextVar("yamlsched_attempt", default=None)


class _Bytes(io.RawIOBase):
    """The bytes below one of the two streams."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        content = bytes(content)
        executing = current.get()
        if executing is None or executing.is_reported:
            os.write(self._descriptor, content)
        elif content:
            executing.write(content)
        return len(content)

    def fileno(self) -> int:
        return self._descriptor


def streams() -> tuple[TextIO, TextIO]:
    """Return what replaces ``sys.stdout`` and ``sys.stderr``; nothing is buffered."""
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "write_through": True,
    }
    raw: Any = _Bytes
    return io.TextIOWrapper(raw(1), **options), io.TextIOWrapper(raw(2), **options)


# of asyncio.to_thread and the like, of all attempts: a thread is started when it is needed
MAX_THREADS = 256

INSTEAD = "use a queue with mode: process for this job"
REFUSED = {
    "stop": "be stopped",
    "close": "be closed",
    "add_signal_handler": "handle signals",
    "shutdown_default_executor": "have its threads shut down",
    "set_default_executor": "get other threads",
    "shutdown_asyncgens": "have its generators closed",
    "set_task_factory": "get another task factory",
    "set_exception_handler": "get another exception handler",
    "set_debug": "log its callbacks",
}
"""The methods of the loop that a handler cannot call, and what it would do by them."""


class ChildLoop(asyncio.SelectorEventLoop):
    """An event loop that handlers cannot stop or reconfigure.

    Each step of a coroutine is noted in ``memory``; exceptions of tasks and callbacks are passed
    on to ``on_exception``.
    """

    def __init__(self, memory: Memory, on_exception: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.memory = memory
        self.base_context = contextvars.copy_context()  # what modules have set, and no run
        self.stepping: Executing | None = None  # the attempt whose code is executing
        self._threads = ThreadPoolExecutor(MAX_THREADS, "asyncio")
        self.set_task_factory(_create_task)
        self.set_exception_handler(lambda _, context: on_exception(context))
        for name, what in REFUSED.items():
            setattr(self, name, _refusal(what))

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

    def leave_in_fork(self) -> None:
        """In a process that a handler forked: make the inherited loop useless, before it takes the
        child's events.

        It executes nothing more: a step of another run would be executed twice.
        """
        self._ready: deque[Any] = deque(maxlen=0)
        null = os.open(os.devnull, os.O_RDWR)
        descriptors = [self._ssock.fileno(), self._csock.fileno()]  # type: ignore[attr-defined]
        selector: Any = self._selector  # type: ignore[attr-defined]
        if (fileno := getattr(selector, "fileno", None)) is not None:
            descriptors.append(fileno())
        for descriptor in descriptors:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)


def _create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None, **named: Any
) -> asyncio.Task[Any]:
    assert isinstance(loop, ChildLoop)
    variables = contextvars.copy_context() if context is None else context
    # a task with a context of its own belongs to the attempt that creates it
    executing = None if variables.get(is_detached) else variables.get(current) or loop.stepping
    if executing is None:
        return asyncio.Task(coroutine, loop=loop, context=context, **named)
    task = asyncio.Task(Steps(coroutine, executing, loop), loop=loop, context=context, **named)
    executing.add(task)
    return task


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine of an attempt. While its code executes, the shared memory says so."""

    __slots__ = ("_coroutine", "_loop", "executing")

    def __init__(self, coroutine: Any, executing: Executing, loop: ChildLoop) -> None:
        self._coroutine, self.executing, self._loop = coroutine, executing, loop

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        executing, loop = self.executing, self._loop
        loop.memory.enter(executing.index)
        loop.stepping = executing
        try:
            return step(*arguments)
        except (
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # which end the loop: not all of its tasks see why
            executing.runner.on_exit(executing, error)
            raise
        finally:
            loop.stepping = None
            loop.memory.leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self._coroutine.__await__()
        return steps

    # what debuggers and reprs ask for: cr_frame, cr_code, __qualname__
    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise YamlschedError(
            f"the event loop is shared with other runs and cannot {what}: {INSTEAD}"
        )

    return refuse


@dataclass(slots=True, eq=False)
class Executing:
    """An attempt: its task, the tasks that its handler has created, and what it has
    printed.
    """

    call: HandlerCall
    runner: CoroutineRunner
    # its task has been executed: before, a cancellation would end the task unnoticed
    is_called: bool = False
    task: asyncio.Task[Any] | None = None
    others: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: set[Future[Any]] = field(default_factory=set)  # in threads, which cannot be cancelled
    output: deque[bytes] = field(default_factory=deque)  # not sent yet; threads append to it
    output_bytes: int = 0
    has_ended: bool = False  # the handler; other tasks may be left
    end: AttemptEnd | None = None  # None: a plain success
    took: float = 0.0  # seconds
    is_reported: bool = False

    @property
    def index(self) -> int:
        return self.call.index

    def write(self, content: bytes) -> None:
        """Add ``content`` to what it has printed."""
        self.output.append(content)
        self.output_bytes += len(content)
        self.runner.reporter.on_output(self)

    def print(self, text: str) -> None:
        self.write(text.encode("utf-8", "backslashreplace"))

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
            self.runner.report(self)


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
