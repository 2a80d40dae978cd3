"""stdout and stderr of a shared child: what a coroutine writes goes to the output of its own attempt.

The attempt is found by the context: tasks inherit it, and so do the threads of ``asyncio.to_thread``. What is written
outside of every attempt, or to the descriptors themselves, goes to the pipe of the child.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamlsched.worker.executors.shared.executing import Executing

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
