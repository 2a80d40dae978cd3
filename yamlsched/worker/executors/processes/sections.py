"""Whose output it is that is read from the pipe of a child, which does not wait until its output has been read.

At the end of an attempt that has printed something, the child writes a mark into the pipe: what precedes it was printed
by that attempt. The parent counts in the shared memory when it starts and ends to read, and when it has read something
else than marks. This is how the child knows of an attempt that has printed nothing, which most do, and needs no mark.
"""

from __future__ import annotations

import os
import struct
from collections import deque

from yamlsched.worker.attempt import Attempt

TOKEN_BYTES = 16  # random: no handler prints them by chance
INDEX = struct.Struct("<H")


class Marks:
    """The marks of one child: its token, and the index of the task that has ended."""

    def __init__(self) -> None:
        self.token = os.urandom(TOKEN_BYTES)

    def mark(self, index: int) -> bytes:
        """Return the mark. It is short enough to be written at once, whatever others write into the pipe."""
        return self.token + INDEX.pack(index)


class Sections:
    """What was read and is not passed on yet: the output of attempts that have ended, and what follows."""

    def __init__(self, marks: Marks) -> None:
        self._token = marks.token
        self._ended: deque[tuple[int, bytes]] = deque()  # by the index of the task
        self._rest = b""
        self._source: Attempt | None = None  # of the rest

    @property
    def has_ended(self) -> bool:
        """Whether there is output of attempts whose end has not been handled: all else waits for that."""
        return bool(self._ended)

    def feed(self, content: bytes, source: Attempt | None) -> bool:
        """Add ``content``, and return whether it is more than marks. What follows the last mark is of ``source``."""
        first, *others = content.split(self._token)
        self._rest += first
        is_printed = bool(first)
        for other in others:
            if len(other) >= INDEX.size:
                self._ended.append((INDEX.unpack_from(other)[0], self._rest))
                self._rest = other[INDEX.size :]
                is_printed = is_printed or bool(self._rest)
        self._source = source
        return is_printed

    def take_ended(self, index: int) -> bytes | None:
        """Return what was read of the output of the task at ``index``, which has ended; None: its mark was not read."""
        while self._ended:
            ended, content = self._ended.popleft()
            if ended == index:
                return content
        return None

    def take_all_ended(self) -> list[tuple[int, bytes]]:
        """Return all output of tasks that have ended, by index."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def take_rest(self) -> tuple[Attempt | None, bytes]:
        """Return what follows the last mark, and by which attempt it was printed."""
        rest, self._rest = self._rest, b""
        return self._source, rest
