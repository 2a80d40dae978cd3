"""How the pool and its children communicate: frames on pipes, and bytes in shared memory.

A frame is its length (4 bytes) and a marshalled pair of a kind and its content: see ``TASKS`` and
``SUCCEEDED``. In the shared memory each task has two bytes at its index: its state, written by the
child, and whether it was withdrawn before it started, written by the parent. What else is there is
of the child as a whole, see ``Shared``. All of it is correct at any instant at which the child
dies.

Progress of attempts is reported in memory of its own (``ProgressSlots``): no report waits, and the
last one is there however the child dies.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from yamlsched.runs.lifecycle import ClaimedRun, Usage
from yamlsched.runs.progress import Progress

SLOT_BYTES = 1024  # the longest report and its head take less
HEAD = struct.Struct("=II")  # checksum and length of the report
IS_USED_AT, SLOTS_AT = 0, mmap.PAGESIZE  # a page of memory is taken when something is written there


class ProgressSlots:
    """A slot for each of ``count`` attempts."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, SLOTS_AT + count * SLOT_BYTES)

    def reporter(self, index: int, run: ClaimedRun) -> Callable[[Progress], None]:
        """Child: return the function that reports the progress of the attempt at ``index``.

        Any thread may call it, and any process that the handler forked. If two do at once, or the
        parent reads meanwhile, the checksum is wrong.
        """
        return partial(self._report, SLOTS_AT + index * SLOT_BYTES, _claim_number(run))

    def _report(self, start: int, claim: int, progress: Progress) -> None:
        content = marshal.dumps(tuple(progress))
        slot = HEAD.pack(zlib.crc32(content, claim), len(content)) + content
        self._bytes[start : start + len(slot)] = slot
        self._bytes[IS_USED_AT] = 1

    @property
    def is_used(self) -> bool:
        """Parent: whether a handler of the child has ever reported progress."""
        return bool(self._bytes[IS_USED_AT])

    def read(self, index: int, run: ClaimedRun) -> Progress | None:
        """Parent: return the progress of the attempt at ``index``.

        A report of an earlier attempt there, or of an earlier claim of the same run, is none of it.
        """
        start, claim = SLOTS_AT + index * SLOT_BYTES, _claim_number(run)
        slot = self._bytes[start : start + SLOT_BYTES]
        checksum, length = HEAD.unpack_from(slot)
        content = slot[HEAD.size : HEAD.size + length]
        if content and checksum == zlib.crc32(content, claim):
            return Progress(*marshal.loads(content))
        return None  # or it is being written


def _claim_number(run: ClaimedRun) -> int:
    """Return a number that tells reports of one claim of a run from those of another."""
    return zlib.crc32(f"{run.id} {run.attempt} {run.locked_by}".encode())


MAX_TASKS = 4096
"""Tasks that a child can hold at once."""
# ENDED: the handler has returned, and its report is being sent
NOT_STARTED, STARTED, SUCCEEDED, ENDED = 0, 1, 2, 3
TASKS, STOP, RESUME = "tasks", "stop", "resume"
"""What the parent sends: tasks to start; indexes of coroutines to cancel; and, to a child that
waits, that what it reported was handled.
"""
OUTPUT, RETIRE, WAIT, SUCCESSES, END, WITHDRAWN = range(6)
"""What a child reports.

OUTPUT: an index, and bytes that its coroutine has printed; what other attempts print is in a pipe.
RETIRE: nothing may follow in this child, by what is left in its process, or in the background.
WAIT: it starts nothing until RESUME, and its pipe of output may hold what the last attempt has
printed. SUCCESSES: a list of ``Success``. END: the index of another attempt that has ended, the
seconds that it took, and its pickled ``AttemptEnd``. WITHDRAWN: the index of one that was withdrawn
before it started.
"""
MAX_FRAME_BYTES = 1 << 26  # reading one blocks the parent for a fraction of a second
LENGTH = struct.Struct("<I")
DUMP_SIGNAL = signal.SIGUSR2  # has a child of coroutines write where it is to ``Channel.stack``
# exit statuses: it cannot continue; the handler closed its pipes
FAILED_EXIT, CLOSED_PIPES = 70, 71


class Channel(NamedTuple):
    """The child's side of its connection to the parent: four descriptors, and the shared memory."""

    commands: int
    results: int
    output: int
    stack: int  # of a child of coroutines that blocks, see ``DUMP_SIGNAL``
    memory: Memory


Task: TypeAlias = tuple[int, str | tuple[Any, ...], str, float, tuple[Any, ...]]
"""A run that is handed to a child, as a plain tuple because that is quickest: its index; the path
of the handler, or a Program; the payload; the timeout in seconds; the values of a ClaimedRun.
"""
NONE = -1  # no index
Success: TypeAlias = tuple[int, float, Usage | None]
"""A plain success: the index of the task, the seconds that it took, and what it used."""


class Shared(ctypes.Structure):
    """What a child and its parent tell each other of the child as a whole."""

    _fields_ = (
        ("is_ready", ctypes.c_bool),  # by the child: it is set up
        ("is_stop_requested", ctypes.c_bool),  # the next SIGTERM is meant for the handler
        ("is_reading", ctypes.c_bool),  # the parent reads the pipe of output, see ``reading``
        ("has_printed", ctypes.c_bool),  # by the parent: something of this attempt was there
        # the process group of the program that the child is executing; 0: it is not signalled
        ("group", ctypes.c_int),
        # for ``usage``: what the child had used when its attempt started, the CPU of programs
        # included; the size of the largest program that had ended; and the size of the process
        # that became its program
        ("cpu_seconds", ctypes.c_double),
        ("largest_program", ctypes.c_double),
        ("program", ctypes.c_double),
        # what the event loop is doing: a number that changes with each step, and while it is
        # idle; the index of the attempt whose code is executing, or NONE; whether that is the
        # import of its handler
        ("step", ctypes.c_uint),
        ("executing", ctypes.c_int),
        ("is_import", ctypes.c_bool),
    )


class Memory:
    """The memory that a child and its parent share."""

    def __init__(self) -> None:
        self._tasks = mmap.mmap(-1, 2 * MAX_TASKS)
        self.shared = Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(Shared)))
        self.progress = ProgressSlots(MAX_TASKS)
        self.shared.executing = NONE
        self._parent = os.getpid()

    # -- what is printed ---------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Parent: read the pipe of output meanwhile. No attempt starts or ends: all is of one."""
        self.shared.is_reading = True
        os.getppid()  # see ``start``
        try:
            yield
        finally:
            self.shared.is_reading = False

    def wait_for_reader(self) -> None:
        """Child: wait until the parent has read. Called between two writes, see ``start``."""
        while self.shared.is_reading and os.getppid() == self._parent:
            time.sleep(0)

    # -- tasks -------------------------------------------------------------------------------------

    def start(self, index: int) -> bool:
        """Child: mark the task as started; return False if the parent has withdrawn it.

        Both sides write first and then read, so that at most one of them takes the task for its
        own. The system call in between keeps the processor from reordering the two.
        """
        self._tasks[index] = STARTED
        os.getppid()
        if self._tasks[MAX_TASKS + index]:
            self._tasks[index] = NOT_STARTED
            return False
        self.wait_for_reader()
        self.shared.has_printed = False
        return True

    def end(self, index: int, state: int = ENDED) -> None:
        """Child: mark that the handler has returned; a report follows."""
        self._tasks[index] = state
        os.getppid()
        self.wait_for_reader()

    def clear(self, index: int) -> None:
        """Parent: prepare ``index`` for a new task."""
        self._tasks[index] = NOT_STARTED
        self._tasks[MAX_TASKS + index] = 0

    def withdraw(self, index: int) -> bool:
        """Parent: withdraw the task; return False if it has started."""
        self._tasks[MAX_TASKS + index] = 1
        os.getppid()
        return self._tasks[index] == NOT_STARTED

    def state(self, index: int) -> int:
        """Parent: return the state of the task."""
        return self._tasks[index]

    # -- the event loop of a child -----------------------------------------------------------------

    def enter(self, index: int, is_import: bool = False) -> None:
        """Child: note that the code of the attempt at ``index`` executes from now on, or NONE."""
        shared = self.shared
        shared.executing, shared.is_import = index, is_import
        shared.step += 1  # the type wraps around


def frame(kind: str | int, content: Any = None) -> bytes:
    """Return what one side sends to the other."""
    body = marshal.dumps((kind, content))
    return LENGTH.pack(len(body)) + body


class Frames:
    """Assembles frames from the pieces in which a pipe delivers them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[Any]:
        """Yield the content of each frame that ``piece`` completes. Raises ValueError for anything
        else, after the frames before it.
        """
        self._rest += piece
        while len(self._rest) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._rest)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = LENGTH.size + length
            if len(self._rest) < end:
                return
            body = self._rest[LENGTH.size : end]
            del self._rest[:end]
            try:
                content = marshal.loads(body)
            except (EOFError, TypeError) as error:
                raise ValueError("an unreadable frame") from error
            yield content
