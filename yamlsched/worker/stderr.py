"""The parent's stderr: log lines and what handlers print, written without ever waiting for who reads them.

A terminal that is paused, or a full pipe, must not keep leases from being renewed.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PIECE = 4_096  # bytes; a pipe that says it is writable takes as many without blocking
FULL = 1 << 18  # bytes that wait to be written: handlers that print wait, too
LONGEST = 1 << 22  # bytes: beyond, lines are dropped
FAREWELL = 2.0  # seconds for which the end of the process waits for its last lines to be read
CLEAR_LINE = b"\r\x1b[K"


class NonBlockingStderr:
    """Takes the place of ``sys.stderr``. ``status`` is a line that stays the last one on a terminal."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._is_scheduled = self._is_waiting = self._is_gone = False
        self._on_room: list[Callable[[], None]] = []
        self._status = b""
        self._is_at_start = True

    @property
    def is_full(self) -> bool:
        """Whether whoever prints much is to wait, and to be called by ``when_room``."""
        return len(self._buffer) > FULL

    def when_room(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, when there is room again."""
        self._on_room.append(call)

    def write(self, text: str) -> int:
        """Take text; it is written soon."""
        content = text.encode(self.encoding, self.errors)
        if self._status:
            content = (CLEAR_LINE if self._is_at_start else b"") + content
            content += self._status if content.endswith(b"\n") else b""
        self._is_at_start = text.endswith("\n")
        self._append(content)
        return len(text)

    def show(self, status: str) -> None:
        """Show ``status`` as the last line of the terminal; empty: none any more."""
        self._status = status.encode(self.encoding, self.errors)
        if self._is_at_start:
            self._append(CLEAR_LINE + self._status)

    def flush(self) -> None:
        """Do nothing: lines are written as soon as they are read."""

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def _append(self, content: bytes) -> None:
        if self._is_gone or len(self._buffer) > LONGEST:
            return
        self._buffer += content
        if not self._is_scheduled and not self._is_waiting:
            self._is_scheduled = True
            self._loop.call_soon(self._write_some)

    def _write_some(self) -> None:
        self._is_scheduled = False
        while self._buffer and self._poll.poll(0):
            try:
                del self._buffer[: os.write(self._descriptor, self._buffer[:PIECE])]
            except BlockingIOError:
                break
            except OSError:
                self._is_gone = True  # nobody reads any more: a run is worth more than its log line
                self._buffer.clear()
        if bool(self._buffer) != self._is_waiting:
            self._is_waiting = bool(self._buffer)
            if self._is_waiting:
                self._loop.add_writer(self._descriptor, self._write_some)
            else:
                self._loop.remove_writer(self._descriptor)
        if not self.is_full:
            calls, self._on_room = self._on_room, []
            for call in calls:
                call()

    def close(self) -> None:
        """Write what is left, as far as somebody reads it."""
        if self._status:
            self.show("")
        while self._buffer and self._poll.poll(FAREWELL * 1000):
            try:
                del self._buffer[: os.write(self._descriptor, self._buffer[:PIECE])]
            except OSError:
                break
        self._buffer.clear()
        if self._is_waiting:
            self._loop.remove_writer(self._descriptor)


@contextmanager
def non_blocking_stderr() -> Iterator[NonBlockingStderr | None]:
    """Replace ``sys.stderr`` by ``NonBlockingStderr``, unless something else (a test) has replaced it already."""
    before: Any = sys.stderr
    try:
        if before.fileno() != 2:
            raise ValueError
    except (AttributeError, OSError, ValueError):
        yield None
        return
    before.flush()
    lines = NonBlockingStderr()
    sys.stderr = lines
    try:
        yield lines
    finally:
        sys.stderr = before
        lines.close()
