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
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from yamlsched.errors import YamlschedError
from yamlsched.handler.detached import is_detached
from yamlsched.runs.lifecycle import AttemptEnd
from yamlsched.worker.local.protocol import NONE, Memory, Task
from yamlsched.worker.local.runner import HandlerCall

if TYPE_CHECKING:
    from yamlsched.worker.local.coroutines import CoroutineRunner

current: ContextVar[Executing | None] = ContextVar("yamlsched_attempt", default=None)


class _Output(io.FileIO):
    """The bytes below one of the two streams."""

    def write(self, content: Any) -> int:
        executing = current.get()
        if executing is None or executing.is_reported:
            return super().write(content)
        executing.write(bytes(content))
        return len(content)


def streams() -> list[TextIO]:
    """Return what replaces ``sys.stdout`` and ``sys.stderr``; nothing is buffered."""
    raw: list[Any] = [_Output(descriptor, "w", closefd=False) for descriptor in (1, 2)]
    text = "utf-8", "backslashreplace"
    return [io.TextIOWrapper(each, *text, write_through=True) for each in raw]


# of asyncio.to_thread and the like, of all attempts: a thread is started when it is needed
MAX_THREADS = 256

INSTEAD = "use a queue with mode: process for this job"
REFUSED = (
    "stop",
    "close",
    "add_signal_handler",
    "shutdown_default_executor",
    "set_default_executor",
    "shutdown_asyncgens",
    "set_task_factory",
    "set_exception_handler",
    "set_debug",
)
"""The methods of the loop that a handler cannot call."""


def refusal(name: str, instead: str = INSTEAD) -> Callable[..., NoReturn]:
    """Return what replaces the function ``name``, which no handler may call."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise YamlschedError(f"{name}() changes a process that other runs share: {instead}")

    return refuse


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
        for name in REFUSED:
            setattr(self, name, refusal(f"loop.{name}"))

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
        except (SystemExit, KeyboardInterrupt) as error:  # which would end the loop
            raise RuntimeError(f"a task of the handler has raised {error!r}") from error
        finally:
            loop.stepping = None
            loop.memory.enter(NONE)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self._coroutine.__await__()
        return steps

    # what debuggers and reprs ask for: cr_frame, cr_code, __qualname__
    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)


class Executing(HandlerCall):
    """An attempt: its task, the tasks that its handler has created, and what it has printed."""

    def __init__(self, runner: CoroutineRunner, task: Task) -> None:
        super().__init__(runner, task)
        self.child = runner
        # its task has been executed: before, a cancellation would end the task unnoticed
        self.is_called = False
        self.task: asyncio.Task[Any] | None = None
        self.others = set[asyncio.Task[Any]]()
        self.calls = set[Future[Any]]()  # in threads, which cannot be cancelled
        self.output = deque[bytes]()  # not sent yet; threads append to it
        self.has_ended = False  # the handler; other tasks may be left
        self.end: AttemptEnd | None = None  # None: a plain success
        self.took = 0.0  # seconds
        self.is_reported = False

    def write(self, content: bytes) -> None:
        """Add ``content`` to what it has printed."""
        self.output.append(content)
        self.child.on_output(self)

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
            self.child.report_end(self)


def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Return whether calling ``handler``, perhaps decorated, returns a coroutine, as far as can be
    known before.
    """
    call = getattr(handler, "__call__", None)  # noqa: B004
    return any(map(inspect.iscoroutinefunction, (handler, inspect.unwrap(handler), call)))
