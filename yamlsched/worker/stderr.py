"""The worker's stderr: log lines and the output of handlers, written without ever blocking.

A terminal that is paused, or a full pipe, must not keep leases from being renewed.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_WRITE_BYTES = 4_096  # a pipe that reports that it is writable takes as many without blocking
MAX_BUFFER_BYTES = 1 << 22  # unwritten: more is dropped
CLOSE_TIMEOUT_SECONDS = 2.0  # for the last lines to be read, at the end of the process


class NonBlockingStderr:
    """Replaces ``sys.stderr``."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._is_closed = False

    def write(self, text: str) -> int:
        """Buffer ``text``; it is written soon. What is not read fast enough is dropped."""
        if not self._is_closed and len(self._buffer) <= MAX_BUFFER_BYTES:
            if not self._buffer:  # otherwise a call is scheduled, or the reader is waited for
                self._loop.call_soon(self._write_soon)
            self._buffer += text.encode(self.encoding, self.errors)
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are written as soon as they are read."""

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def _write_soon(self) -> None:
        self._write(0)
        if self._buffer:
            self._loop.add_writer(self._descriptor, self._write_soon)
        else:
            self._loop.remove_writer(self._descriptor)

    def _write(self, seconds: float) -> None:
        """Write while there is room in less than ``seconds``: whole lines at once if possible.
        Other processes cannot write between them.
        """
        while self._buffer and self._poll.poll(seconds * 1000):
            piece = self._buffer[:MAX_WRITE_BYTES]
            piece = piece[: piece.rfind(b"\n") + 1] or piece
            try:
                del self._buffer[: os.write(self._descriptor, piece)]
            except BlockingIOError:
                break
            except OSError:
                # it has no reader any more: a run is worth more than its log line
                self._is_closed = True
                self._buffer.clear()

    def close(self) -> None:
        """Write the rest, unless its reader is too slow."""
        self._write(CLOSE_TIMEOUT_SECONDS)
        self._buffer.clear()
        self._loop.remove_writer(self._descriptor)


@contextmanager
def non_blocking_stderr() -> Iterator[None]:
    """Replace ``sys.stderr`` by ``NonBlockingStderr``, unless something else (a test) has replaced
    it already.
    """
    before: Any = sys.stderr
    try:
        is_own = before.fileno() == 2
    except (AttributeError, OSError, ValueError):
        is_own = False
    if not is_own:
        yield
        return
    before.flush()
    stderr = NonBlockingStderr()
    sys.stderr = stderr
    try:
        yield
    finally:
        sys.stderr = before
        stderr.close()
