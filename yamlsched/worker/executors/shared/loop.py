"""The event loop of a shared child, protected from what one handler could do to all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn

from yamlsched.errors import YamlschedError
from yamlsched.worker.executors.shared.streams import current

if TYPE_CHECKING:
    from yamlsched.worker.executors.shared.board import Board
    from yamlsched.worker.executors.shared.executing import Executing


class SharedLoop(asyncio.SelectorEventLoop):
    """An event loop that handlers cannot stop or reconfigure."""

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
            executing = current.get() if context is None else context.get(current)
            if executing is None:
                return asyncio.Task(coroutine, loop=loop, context=context, **named)
            task = asyncio.Task(Steps(coroutine, board, executing), loop=loop, context=context, **named)
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

    __slots__ = ("_board", "_coroutine", "_index", "executing")

    def __init__(self, coroutine: Any, board: Board, executing: Executing) -> None:
        self._coroutine, self._board, self._index = coroutine, board, executing.index
        self.executing = executing

    def send(self, value: Any) -> Any:
        self._board.enter(self._index)
        try:
            return self._coroutine.send(value)
        except (SystemExit, KeyboardInterrupt) as error:  # which end the loop: not all of its tasks see why
            self.executing.on_exit(self.executing, error)
            raise
        finally:
            self._board.leave()

    def throw(self, *error: Any) -> Any:
        self._board.enter(self._index)
        try:
            return self._coroutine.throw(*error)
        finally:
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
