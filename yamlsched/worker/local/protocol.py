"""How the pool and its children communicate: frames on pipes, and bytes in shared memory.

A frame is its length (4 bytes) and a marshalled value. Parent to child: a list of tasks, or
``RESUME``. Child to parent: the plain successes since the last frame, and one report or None. In
the shared memory each task has two bytes at its index: its state, written by the child, and whether
it was withdrawn before it started, written by the parent. Two more bytes are for the child as a
whole: that it is ready for tasks, and that the parent wants its handler stopped. The next four are
the process group of the command that it executes, or 0. The next eight are two counts of the
parent's reads of the output; see ``child``. The last are for what attempts use; see ``usage``. They
are correct at any instant at which the child dies.

Progress of attempts is reported in memory of its own (``ProgressSlots``): no report waits, and the
last one is there however the child dies.
"""

from __future__ import annotations

import marshal
import math
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, EnqueueBatch, Usage
from yamlsched.runs.progress import Progress


def bounded(report: TaskEnd, encode: Callable[[TaskEnd], bytes]) -> bytes:
    """Return the frame of ``report``; if that is too large, the frame of its failure."""
    content = encode(report)
    if report.end is None or len(content) <= MAX_FRAME_BYTES:
        return content
    runs = sum(len(batch.payloads) for batch in report.end.enqueued)
    size, limit = f"{len(content) >> 20} MiB", f"{MAX_FRAME_BYTES >> 20} MiB"
    error = f"it enqueued {runs} runs, {size}, over the limit of {limit}: "
    error += "enqueue fewer in one attempt, and let some of them enqueue the rest"
    return encode(report._replace(end=AttemptEnd(EndKind.RAISED, error, "EnqueueRefused")))


TOKEN_BYTES = 16  # random: no handler prints them by chance


INDEX = struct.Struct("<H")


class Marks:
    """The marks of one child: its token, and the index of the task that has ended."""

    def __init__(self) -> None:
        self.token = os.urandom(TOKEN_BYTES)

    def mark(self, index: int) -> bytes:
        """Return the mark. It is short enough to be written at once, whatever others write into the
        pipe.
        """
        return self.token + INDEX.pack(index)


SLOT_BYTES = 1024  # the longest note and the head take less
HEAD = struct.Struct("=IHdd")  # checksum, bytes of the note, done, total or NaN
IS_USED_AT, SLOTS_AT = 0, mmap.PAGESIZE  # a page of memory is taken when something is written there
MAX_READS = 10  # of a slot that is being written


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
        done, total, note = progress
        content = note.encode()
        head = HEAD.pack(0, len(content), done, math.nan if total is None else total)
        slot = (
            zlib.crc32(content, zlib.crc32(head, claim)).to_bytes(4, sys.byteorder)
            + head[4:]
            + content
        )
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
        for _ in range(MAX_READS):
            slot = self._bytes[start : start + SLOT_BYTES]
            checksum, length, done, total = HEAD.unpack_from(slot)
            if not checksum:
                break  # nothing was written there
            content = slot[HEAD.size : HEAD.size + length]
            if checksum == zlib.crc32(content, zlib.crc32(bytes(4) + slot[4 : HEAD.size], claim)):
                return Progress(
                    done, None if math.isnan(total) else total, content.decode("utf-8", "replace")
                )
        return None


def _claim_number(run: ClaimedRun) -> int:
    """Return a number that tells reports of one claim of a run from those of another."""
    return zlib.crc32(f"{run.id} {run.attempt} {run.locked_by}".encode())


MAX_TASKS = 2048
"""Tasks that a child can hold at once."""
NOT_STARTED, STARTED, SUCCEEDED, ENDED = (
    0,
    1,
    2,
    3,
)  # ENDED: the handler has returned, and its report is being sent
READY, STOP = 2 * MAX_TASKS, 2 * MAX_TASKS + 1  # indexes of the bytes for the child as a whole
GROUP = 2 * MAX_TASKS + 4
GROUP_ID = struct.Struct("=i")
READS = GROUP + GROUP_ID.size
USED = READS + 8
RESUME = "resume"  # the parent has withdrawn what is not to follow the last attempt
MAX_FRAME_BYTES = 1 << 26  # reading one blocks the parent for a fraction of a second
LENGTH = struct.Struct("<I")
FAILED_EXIT, CLOSED_PIPES = (
    70,
    71,
)  # exit statuses: it cannot continue; the handler closed its pipes


class Channel(NamedTuple):
    """The child's side of its connection to the parent: three descriptors, and the
    shared memory.
    """

    commands: int
    results: int
    output: int
    memory: Memory


Task: TypeAlias = tuple[int, str | tuple[Any, ...], str, int | None, float, tuple[Any, ...]]
"""A run that is handed to a child: the arguments of ``Runner.execute``, as a plain tuple because
that is quickest.
"""


Success: TypeAlias = tuple[int, float, Usage | None]
"""A plain success: the index of the task, the seconds that it took, and what it used."""


class TaskEnd(NamedTuple):
    """The end of a task that is not a plain success."""

    number: int
    end: AttemptEnd | None  # None: it was withdrawn before it started
    took: float = 0.0  # seconds
    import_seconds: float = 0.0  # of these, for importing the handler
    has_mark: bool = False  # in the output: what it printed may be unread
    # nothing may follow in this child: by what is left in its process, or in the background
    must_retire: bool = False

    def encode(self) -> tuple[Any, ...]:
        """Return the report in types that a frame can hold."""
        end = self.end
        if end is None:
            return tuple(self)
        delay = (
            None
            if end.delay is None
            else (end.delay.days, end.delay.seconds, end.delay.microseconds)
        )
        plain: dict[str, Any] = {
            "kind": end.kind.value,
            "delay": delay,
            "enqueued": list(map(tuple, end.enqueued)),
        }
        return (self.number, tuple(end._replace(**plain)), *self[2:])

    @classmethod
    def decode(cls, values: tuple[Any, ...]) -> TaskEnd:
        """Return the report of ``encode``. Raises ValueError or TypeError for anything else."""
        report = cls(*values)
        if report.end is None:
            return report
        end = AttemptEnd(*report.end)
        delay: Any = end.delay
        enqueued = [EnqueueBatch(*batch) for batch in end.enqueued]
        usage: Any = end.usage and tuple(end.usage)
        end = end._replace(
            kind=EndKind(end.kind),
            delay=delay and timedelta(*delay),
            enqueued=enqueued,
            usage=usage,
        )
        return report._replace(end=end)


class Memory:
    """The shared bytes of one child."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, USED + 3 * 8)
        self._reads = memoryview(self._bytes)[READS:USED].cast("I")
        self.used = memoryview(self._bytes)[USED:].cast("d")  # see ``usage``
        self.marks = Marks()
        self.progress = ProgressSlots(MAX_TASKS)

    def set_ready(self) -> None:
        """Child: report that it is set up, and waits for tasks."""
        self._bytes[READY] = 1

    @property
    def is_ready(self) -> bool:
        """Parent: whether the child has been set up."""
        return bool(self._bytes[READY])

    def request_stop(self) -> None:
        """Parent: the next SIGTERM is meant for the handler."""
        self._bytes[STOP] = 1

    @property
    def is_stop_requested(self) -> bool:
        """Child: whether the parent has asked it to stop its handler."""
        return bool(self._bytes[STOP])

    def set_group(self, group: int) -> None:
        """Child, or its program before it starts: set the program's process group; 0: it is no
        longer signalled.
        """
        GROUP_ID.pack_into(self._bytes, GROUP, group)

    @property
    def group(self) -> int:
        """Parent: the process group of the program that the child is executing, or 0."""
        return int(GROUP_ID.unpack_from(self._bytes, GROUP)[0])

    @property
    def reads(self) -> int:
        """Child: a number that changes when the parent starts to read the output, and when it ends;
        odd: it reads.
        """
        return self._reads[0]

    @property
    def prints(self) -> int:
        """Child: a number that changes, before a read ends, when the parent has read something else
        than marks.
        """
        return self._reads[1]

    def start_read(self) -> None:
        """Parent: the output is read from now on."""
        self._reads[0] = (self._reads[0] + 1) & 0xFFFFFFFF

    def end_read(self, is_printed: bool) -> None:
        """Parent: the output was read; ``is_printed``: more than marks."""
        self._reads[1] = (self._reads[1] + is_printed) & 0xFFFFFFFF
        self._reads[0] = (self._reads[0] + 1) & 0xFFFFFFFF

    def clear(self, indexes: Iterable[int]) -> None:
        """Parent: prepare the indexes for new tasks."""
        shared = self._bytes
        for index in indexes:
            shared[index] = NOT_STARTED
            shared[MAX_TASKS + index] = 0

    def start(self, index: int) -> bool:
        """Child: mark the task as started; return False if the parent has withdrawn it.

        Both sides write first and then read, so that at most one of them takes the task for its
        own. The system call in between keeps the processor from reordering the two.
        """
        self._bytes[index] = STARTED
        os.getppid()
        if self._bytes[MAX_TASKS + index]:
            self._bytes[index] = NOT_STARTED
            return False
        return True

    def succeed(self, index: int) -> None:
        """Child: mark the task as a plain success."""
        self._bytes[index] = SUCCEEDED

    def end(self, index: int) -> None:
        """Child: mark that the handler has returned; the report follows."""
        self._bytes[index] = ENDED

    def withdraw(self, index: int) -> bool:
        """Parent: withdraw the task; return False if it has started."""
        self._bytes[MAX_TASKS + index] = 1
        os.getppid()
        return self._bytes[index] == NOT_STARTED

    def state(self, index: int) -> int:
        """Parent: return the state of the task."""
        return self._bytes[index]

    def running(self) -> int | None:
        """Parent: return the index of the task whose handler is executing."""
        index = self._bytes.find(bytes([STARTED]), 0, MAX_TASKS)
        return None if index < 0 else index


def frame(content: Any) -> bytes:
    """Return ``content`` as a frame."""
    body = marshal.dumps(content)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Assembles frames from the pieces in which a pipe delivers them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[Any]:
        """Return the content of each frame that ``piece`` completes. Raises ValueError for anything
        else.
        """
        self._rest += piece
        contents, start = [], 0
        while len(self._rest) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._rest, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = start + LENGTH.size + length
            if len(self._rest) < end:
                break
            try:
                contents.append(
                    marshal.loads(bytes(memoryview(self._rest)[start + LENGTH.size : end]))
                )
            except (EOFError, TypeError) as error:
                raise ValueError("an unreadable frame") from error
            start = end
        del self._rest[:start]
        return contents
