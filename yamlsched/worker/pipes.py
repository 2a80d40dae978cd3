"""Writing to the pipe of another process without ever waiting for it."""

from __future__ import annotations

import asyncio
import os


class PipeWriter:
    """Writes to a pipe: what it does not take now is kept, and written once its reader has made room.

    A reader that has died is not an error: whoever waits for its answers finds out.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._unwritten = bytearray()
        self._loop = asyncio.get_running_loop()

    @property
    def is_flushed(self) -> bool:
        """Whether the pipe has taken everything: more would only wait in the memory of this process."""
        return not self._unwritten

    def write(self, content: bytes) -> None:
        is_waiting = bool(self._unwritten)
        self._unwritten += content
        if not is_waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._descriptor, self._unwritten)]
        except BlockingIOError:
            self._loop.add_writer(self._descriptor, self._flush)
            return
        except OSError:
            self._unwritten.clear()
        self._loop.remove_writer(self._descriptor)

    def disconnect(self) -> None:
        """Close the pipe. The descriptor stays taken until ``close``: what is written later is dropped."""
        self._unwritten.clear()
        self._loop.remove_writer(self._descriptor)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._descriptor, inheritable=False)
        os.close(null)

    def close(self) -> None:
        self._unwritten.clear()
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
