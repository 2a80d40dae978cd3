"""What a shared child writes into memory that its parent reads, correct at any instant at which the
child dies.

Frames on pipes are those of the other pool (``protocol.py``). Parent to child: ``(START, limit,
tasks)``, where no more than ``limit`` tasks execute at once and the others wait; ``(STOP,
indexes)``; and ``(WITHDRAW,)``, for those that wait. Child to parent: a ``Batch``.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any, NamedTuple

from yamlsched.worker.local.protocol import ProgressSlots

START, STOP, WITHDRAW = "start", "stop", "withdraw"
NOT_STARTED, STARTED, SUCCEEDED, ENDED = (
    0,
    1,
    2,
    3,
)  # ENDED: the handler has returned, and its report is being sent
READY_AT, NOTE_AT, MAX_NOTE_BYTES = 0, 16, 8_192
STEP, STEP_AT = struct.Struct("=IIB"), 4
NOTE_LENGTH = struct.Struct("=I")
STATES_AT = NOTE_AT + NOTE_LENGTH.size + MAX_NOTE_BYTES


class Batch(NamedTuple):
    """What a child reports at once, in this order: what attempts printed, plain successes, and
    other ends.

    ``outputs`` are indexes and bytes, ``successes`` indexes and seconds, ``reports`` encoded
    ``Report``s, ``returned`` the indexes of tasks that were not started, and will not be.
    ``is_leaking``: a task that a handler had left behind does not end, so that the child is to be
    replaced.
    """

    outputs: list[tuple[int, bytes]]
    successes: list[tuple[int, float]]
    reports: list[tuple[Any, ...]]
    returned: list[int]
    is_leaking: bool = False


class LoopStep(NamedTuple):
    """What the event loop of a child is doing. ``number`` changes with each step, and while the
    loop is idle.
    """

    number: int
    executing: int | None  # the index of the attempt whose code is executing
    is_import: bool  # of its handler


class Board:
    """The shared memory of one child that executes up to ``capacity`` attempts at once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bytes = mmap.mmap(-1, STATES_AT + capacity)
        self.progress = ProgressSlots(capacity)
        self._number = 0

    # -- the child ---------------------------------------------------------------------------------

    def set_ready(self) -> None:
        """Report that it is set up, and waits for tasks."""
        self._bytes[READY_AT] = 1

    def set_state(self, index: int, state: int) -> None:
        self._bytes[STATES_AT + index] = state

    def enter(self, index: int, is_import: bool = False) -> None:
        """Note that the code of the attempt at ``index`` executes from now on."""
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        STEP.pack_into(self._bytes, STEP_AT, number, index + 1, is_import)

    def leave(self) -> None:
        """Note that no attempt's code is executing."""
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        STEP.pack_into(self._bytes, STEP_AT, number, 0, False)

    def write_note(self, text: str) -> None:
        """Leave ``text`` to be read after the child's death."""
        content = text.encode("utf-8", "replace")[:MAX_NOTE_BYTES]
        self._bytes[NOTE_AT + NOTE_LENGTH.size : NOTE_AT + NOTE_LENGTH.size + len(content)] = (
            content
        )
        NOTE_LENGTH.pack_into(self._bytes, NOTE_AT, len(content))

    # -- both --------------------------------------------------------------------------------------

    def step(self) -> LoopStep:
        """Return what the child is doing."""
        number, index, is_import = STEP.unpack_from(self._bytes, STEP_AT)
        return LoopStep(number, index - 1 if index else None, bool(is_import))

    # -- the parent --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(self._bytes[READY_AT])

    def state(self, index: int) -> int:
        return self._bytes[STATES_AT + index]

    def started_count(self) -> int:
        """Return how many attempts have started, and not ended."""
        return self._bytes[STATES_AT:].count(STARTED)

    def clear(self, index: int) -> None:
        """Prepare ``index`` for another task."""
        self._bytes[STATES_AT + index] = NOT_STARTED

    def note(self) -> str:
        """Return what the child has left; empty without a note."""
        (length,) = NOTE_LENGTH.unpack_from(self._bytes, NOTE_AT)
        start = NOTE_AT + NOTE_LENGTH.size
        return self._bytes[start : start + min(length, MAX_NOTE_BYTES)].decode("utf-8", "replace")
