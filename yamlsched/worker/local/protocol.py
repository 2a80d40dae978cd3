"""How the pool and its children communicate: frames on pipes, and bytes in shared memory.

A frame is its length (4 bytes) and a marshalled value. Parent to child: a kind and its content, see
``TASKS``. Child to parent: a ``Message``. In the shared memory each task has two bytes at its
index: its state, written by the child, and whether it was withdrawn before it started, written by
the parent. What follows is of the child as a whole, see ``Memory``. All of it is correct at any
instant at which the child dies.

Progress of attempts is reported in memory of its own (``ProgressSlots``): no report waits, and the
last one is there however the child dies.
"""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind, EnqueueBatch, Usage
from yamlsched.runs.progress import Progress

SLOT_BYTES = 1024  # the longest report and its head take less
HEAD = struct.Struct("=II")  # checksum and length of the report
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
        for _ in range(MAX_READS):
            slot = self._bytes[start : start + SLOT_BYTES]
            checksum, length = HEAD.unpack_from(slot)
            content = slot[HEAD.size : HEAD.size + length]
            if content and checksum == zlib.crc32(content, claim):
                return Progress(*marshal.loads(content))
        return None


def _claim_number(run: ClaimedRun) -> int:
    """Return a number that tells reports of one claim of a run from those of another."""
    return zlib.crc32(f"{run.id} {run.attempt} {run.locked_by}".encode())


MAX_TASKS = 4096
"""Tasks that a child can hold at once."""
# ENDED: the handler has returned, and its report is being sent
NOT_STARTED, STARTED, SUCCEEDED, ENDED = 0, 1, 2, 3
# places in the shared memory, after two bytes for each task
READY, STOPPING, READING, PRINTED = range(2 * MAX_TASKS, 2 * MAX_TASKS + 4)
GROUP, GROUP_ID = 2 * MAX_TASKS + 4, struct.Struct("=i")
USED, USED_NUMBERS = GROUP + 4, 3
STEP_AT, STEP = USED + 8 * USED_NUMBERS, struct.Struct("=IIB")
NOTE_AT, NOTE_LENGTH, MAX_NOTE_BYTES = STEP_AT + 12, struct.Struct("=I"), 8_192
NOTE_TEXT_AT = NOTE_AT + NOTE_LENGTH.size
TASKS, STOP, RESUME = "tasks", "stop", "resume"
"""What the parent sends: tasks to start; indexes of coroutines to cancel; and, to a child that
waits, that its message was handled.
"""
MAX_FRAME_BYTES = 1 << 26  # reading one blocks the parent for a fraction of a second
LENGTH = struct.Struct("<I")
# exit statuses: it cannot continue; the handler closed its pipes
FAILED_EXIT, CLOSED_PIPES = 70, 71


class Channel(NamedTuple):
    """The child's side of its connection to the parent: three descriptors, and the
    shared memory.
    """

    commands: int
    results: int
    output: int
    memory: Memory


Task: TypeAlias = tuple[int, str | tuple[Any, ...], str, float, tuple[Any, ...]]
"""A run that is handed to a child, as a plain tuple because that is quickest: its index; the path
of the handler, or a Program; the payload; the timeout in seconds; the values of a ClaimedRun.
"""
Success: TypeAlias = tuple[int, float, Usage | None]
"""A plain success: the index of the task, the seconds that it took, and what it used."""


class Message(NamedTuple):
    """What a child reports at once.

    ``outputs`` are indexes and bytes that coroutines have printed; what other attempts print is in
    a pipe. ``report`` is an encoded ``TaskEnd``. ``must_retire``: nothing may follow in this child,
    by what is left in its process, or in the background. ``waits``: the child starts nothing until
    RESUME, and its pipe of output may hold what the last attempt has printed.
    """

    outputs: list[tuple[int, bytes]]
    successes: list[Success]
    report: tuple[Any, ...] | None
    must_retire: bool = False
    waits: bool = False


class TaskEnd(NamedTuple):
    """The end of a task that is not a plain success."""

    number: int
    end: AttemptEnd | None  # None: it was withdrawn before it started
    took: float = 0.0  # seconds
    import_seconds: float = 0.0  # of these, for importing the handler

    def encode(self) -> tuple[Any, ...]:
        """Return the report in types that a frame can hold."""
        end = self.end
        if end is None:
            return tuple(self)
        seconds = None if end.delay is None else end.delay.total_seconds()
        plain: dict[str, Any] = {
            "kind": end.kind.value,
            "delay": seconds,
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
            delay=None if delay is None else timedelta(seconds=delay),
            enqueued=enqueued,
            usage=usage,
        )
        return report._replace(end=end)


class LoopStep(NamedTuple):
    """What the event loop of a child is doing. ``number`` changes with each step, and while the
    loop is idle.
    """

    number: int
    executing: int | None  # the index of the attempt whose code is executing
    is_import: bool  # of its handler


class Memory:
    """The shared bytes of one child."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, NOTE_TEXT_AT + MAX_NOTE_BYTES)
        self.used = memoryview(self._bytes)[USED:STEP_AT].cast("d")  # see ``usage``
        self.progress = ProgressSlots(MAX_TASKS)
        self._parent, self._steps = os.getpid(), 0

    # -- the child as a whole ----------------------------------------------------------------------

    def set_ready(self) -> None:
        """Child: report that it is set up, and waits for tasks."""
        self._bytes[READY] = 1

    @property
    def is_ready(self) -> bool:
        """Parent: whether the child has been set up."""
        return bool(self._bytes[READY])

    def request_stop(self) -> None:
        """Parent: the next SIGTERM is meant for the handler."""
        self._bytes[STOPPING] = 1

    @property
    def is_stop_requested(self) -> bool:
        """Child: whether the parent has asked it to stop its handler."""
        return bool(self._bytes[STOPPING])

    def set_group(self, group: int) -> None:
        """Child, or its program before it starts: set the program's process group; 0: it is no
        longer signalled.
        """
        GROUP_ID.pack_into(self._bytes, GROUP, group)

    @property
    def group(self) -> int:
        """Parent: the process group of the program that the child is executing, or 0."""
        return int(GROUP_ID.unpack_from(self._bytes, GROUP)[0])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Parent: read the pipe of output meanwhile. No attempt starts or ends: all is of one."""
        self._bytes[READING] = 1
        os.getppid()  # see ``start``
        try:
            yield
        finally:
            self._bytes[READING] = 0

    def note_print(self) -> None:
        """Parent, while it is reading: the attempt that executes has printed something."""
        self._bytes[PRINTED] = 1

    def has_printed(self) -> bool:
        """Child: return whether the parent has read something since the attempt started."""
        self.wait_for_reader()
        return bool(self._bytes[PRINTED])

    def wait_for_reader(self) -> None:
        """Child: wait until the parent has read. Called between two writes, see ``start``."""
        while self._bytes[READING] and os.getppid() == self._parent:
            time.sleep(0)

    # -- tasks -------------------------------------------------------------------------------------

    def start(self, index: int) -> bool:
        """Child: mark the task as started; return False if the parent has withdrawn it.

        Both sides write first and then read, so that at most one of them takes the task for its
        own. The system call in between keeps the processor from reordering the two.
        """
        shared = self._bytes
        shared[index] = STARTED
        os.getppid()
        if shared[MAX_TASKS + index]:
            shared[index] = NOT_STARTED
            return False
        self.wait_for_reader()
        shared[PRINTED] = 0
        return True

    def end(self, index: int, state: int = ENDED) -> None:
        """Child: mark that the handler has returned; a report follows."""
        self._bytes[index] = state
        os.getppid()
        self.wait_for_reader()

    def clear(self, index: int) -> None:
        """Parent: prepare ``index`` for a new task."""
        self._bytes[index] = NOT_STARTED
        self._bytes[MAX_TASKS + index] = 0

    def withdraw(self, index: int) -> bool:
        """Parent: withdraw the task; return False if it has started."""
        self._bytes[MAX_TASKS + index] = 1
        os.getppid()
        return self._bytes[index] == NOT_STARTED

    def state(self, index: int) -> int:
        """Parent: return the state of the task."""
        return self._bytes[index]

    def running(self) -> int | None:
        """Parent: return the index of the task whose handler is executing, or the lowest one."""
        index = self._bytes.find(bytes([STARTED]), 0, MAX_TASKS)
        return None if index < 0 else index

    # -- the event loop of a child -----------------------------------------------------------------

    def enter(self, index: int, is_import: bool = False) -> None:
        """Child: note that the code of the attempt at ``index`` executes from now on."""
        self._set_step(index + 1, is_import)

    def leave(self) -> None:
        """Child: note that no attempt's code is executing."""
        self._set_step(0, False)

    def _set_step(self, place: int, is_import: bool) -> None:
        self._steps = number = (self._steps + 1) & 0xFFFFFFFF
        STEP.pack_into(self._bytes, STEP_AT, number, place, is_import)

    def step(self) -> LoopStep:
        """Return what the child is doing."""
        number, place, is_import = STEP.unpack_from(self._bytes, STEP_AT)
        return LoopStep(number, place - 1 if place else None, bool(is_import))

    def write_note(self, text: str) -> None:
        """Child: leave ``text`` to be read after its death."""
        content = text.encode("utf-8", "replace")[:MAX_NOTE_BYTES]
        self._bytes[NOTE_TEXT_AT : NOTE_TEXT_AT + len(content)] = content
        NOTE_LENGTH.pack_into(self._bytes, NOTE_AT, len(content))

    def note(self) -> str:
        """Parent: return what the child has left; empty without a note."""
        (length,) = NOTE_LENGTH.unpack_from(self._bytes, NOTE_AT)
        text = self._bytes[NOTE_TEXT_AT : NOTE_TEXT_AT + min(length, MAX_NOTE_BYTES)]
        return text.decode("utf-8", "replace")


BLOCKED_SECONDS = 3.0  # for which one step of a coroutine may take
BLOCKED_FOR = f"blocked the event loop for {BLOCKED_SECONDS:.0f}s"
IMPORT_SECONDS = 60.0  # for which the import of a handler may take
WATCH_INTERVAL_SECONDS = 0.25


class Stall:
    """For how long a child's event loop has been seen in the same step.

    Intervals in which the observer itself was not executed do not count: the whole host may have
    stood still.
    """

    def __init__(self) -> None:
        self._step: LoopStep | None = None
        self._seen_at = self._seconds = 0.0

    def is_over(self, step: LoopStep, now: float, margin: float = 0.0) -> bool:
        """Observe ``step``; return whether it takes too long, by more than ``margin`` seconds."""
        if step == self._step:
            self._seconds += min(now - self._seen_at, 2 * WATCH_INTERVAL_SECONDS)
        else:
            self._step, self._seconds = step, 0.0
        self._seen_at = now
        return self._seconds >= (IMPORT_SECONDS if step.is_import else BLOCKED_SECONDS) + margin


def frames(
    outputs: list[tuple[int, bytes]],
    successes: list[Success],
    reports: list[TaskEnd],
    must_retire: bool = False,
    waits: bool = False,
) -> bytes:
    """Return the frames of what a child reports; see ``Message``.

    Each report has a frame of its own: it may enqueue much. If that is too large, the attempt has
    failed.
    """
    found = []
    for report in reports:
        content = frame(([], [], report.encode()))
        if len(content) > MAX_FRAME_BYTES:
            content = frame(([], [], _refused(report, len(content)).encode()))
        found.append(content)
    return b"".join([frame((outputs, successes, None, must_retire, waits)), *found])


def _refused(report: TaskEnd, size: int) -> TaskEnd:
    runs = sum(len(batch.payloads) for batch in report.end.enqueued) if report.end else 0
    error = f"it enqueued {runs} runs, {size >> 20} MiB, over the limit of {MAX_FRAME_BYTES >> 20}"
    error += " MiB: enqueue fewer in one attempt, and let some of them enqueue the rest"
    return report._replace(end=AttemptEnd(EndKind.RAISED, error, "EnqueueRefused"))


def write_all(descriptor: int, content: bytes) -> None:
    """Write ``content``; wait while the pipe is full."""
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


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
