"""What parent and child say to each other: frames on pipes, and bytes in shared memory.

A frame is its length (4 bytes) and what is marshalled after it. Parent to child: a list of tasks, or ``GO_ON``. Child
to parent: the plain successes of late, each as its place and the seconds that it took, and a report of another end, or
None. In the shared memory each task has two bytes at its index: how far it is, written by the child, and
whether it was taken back before it began, written by the parent. Two more bytes are for the child as a whole: that it
is ready for tasks, and that the parent wants its handler stopped. They are right at whatever instant the child dies.
"""

from __future__ import annotations

import marshal
import mmap
import os
import struct
from typing import Any, NamedTuple, TypeAlias

PLACES = 2048
"""Tasks that a child can hold at once."""
NOT_STARTED, STARTED, DONE, ENDED = 0, 1, 2, 3  # ENDED: the handler is through, and its report is being sent
READY, STOP = 2 * PLACES, 2 * PLACES + 1  # indexes of the bytes for the child as a whole
GO_ON = "go on"
WITHDRAWN = "withdrawn"  # the end of a task that was taken back before it began
MAX_FRAME_BYTES = 1 << 26  # bytes: reading one holds up the parent for a fraction of a second
LENGTH = struct.Struct("<I")


Task: TypeAlias = tuple[int, str, str, int | None, float, tuple[Any, ...]]
"""A run handed to a child: its place, the handler, the payload, the dead run that it reports if any, the seconds that
an attempt may take, the ClaimedRun."""


class Report(NamedTuple):
    """The end of an attempt that is no plain success, as a child tells it."""

    place: int
    end: str  # a runs.End, or WITHDRAWN
    error: str = ""
    error_type: str = ""
    stack: str = ""
    result: str | None = None
    delay: float | None = None  # seconds
    took: float = 0.0  # seconds
    import_seconds: float = 0.0  # of these, for importing the handler
    enqueued: list[Any] | None = None
    has_output: bool = False


class Memory:
    """The shared bytes of one child."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, 2 * PLACES + 2)

    def set_ready(self) -> None:
        """Child: report that it is set up, and waits for tasks."""
        self._bytes[READY] = 1

    @property
    def is_ready(self) -> bool:
        """Parent: whether the child was ever set up."""
        return bool(self._bytes[READY])

    def request_stop(self) -> None:
        """Parent: the next SIGTERM is meant."""
        self._bytes[STOP] = 1

    @property
    def is_stop_requested(self) -> bool:
        """Child: whether the parent has asked it to stop its handler."""
        return bool(self._bytes[STOP])

    def clear(self, index: int) -> None:
        """Parent: make the place ready for a task."""
        self._bytes[index] = NOT_STARTED
        self._bytes[PLACES + index] = 0

    def start(self, index: int) -> bool:
        """Child: say that the task begins; False if the parent has taken it back.

        Both sides write first and read then, so that at most one of them believes the task to be its own; the system
        call in between keeps the processor from doing it the other way round.
        """
        self._bytes[index] = STARTED
        os.getppid()
        if self._bytes[PLACES + index]:
            self._bytes[index] = NOT_STARTED
            return False
        return True

    def done(self, index: int) -> None:
        """Child: say that the task has succeeded, and has nothing more to tell than that."""
        self._bytes[index] = DONE

    def ended(self, index: int) -> None:
        """Child: say that the handler is through; its report says how."""
        self._bytes[index] = ENDED

    def withdraw(self, index: int) -> bool:
        """Parent: take the task back; False if it has begun."""
        self._bytes[PLACES + index] = 1
        os.getppid()
        return self._bytes[index] == NOT_STARTED

    def state(self, index: int) -> int:
        """Parent: how far the task is."""
        return self._bytes[index]

    def running(self) -> int | None:
        """Parent: the index of the task whose handler is executing."""
        index = self._bytes.find(bytes([STARTED]), 0, PLACES)
        return None if index < 0 else index


def frame(content: Any) -> bytes:
    """Return ``content`` as a frame."""
    body = marshal.dumps(content)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Put frames together from the pieces in which a pipe delivers them."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, piece: bytes) -> list[Any]:
        """Return the content of each frame that ``piece`` completes. Raises ValueError for what is no frame."""
        self._left += piece
        contents, start = [], 0
        while len(self._left) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._left, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = start + LENGTH.size + length
            if len(self._left) < end:
                break
            try:
                contents.append(marshal.loads(bytes(memoryview(self._left)[start + LENGTH.size : end])))
            except (EOFError, TypeError) as error:
                raise ValueError("an unreadable frame") from error
            start = end
        del self._left[:start]
        return contents
