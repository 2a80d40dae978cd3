"""Memory in which a child reports the progress of its attempts, and from which its parent reads it.

A report is a few bytes written to memory: no call of it waits, and the last one is there however the child dies.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
import zlib
from collections.abc import Callable
from functools import partial

from yamlsched.progress import Progress
from yamlsched.runs import ClaimedRun

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

        Any thread may call it, and any process that the handler forked. If two do at once, or the parent reads
        meanwhile, the checksum is wrong.
        """
        return partial(self._report, SLOTS_AT + index * SLOT_BYTES, _claim_number(run))

    def _report(self, start: int, claim: int, progress: Progress) -> None:
        done, total, note = progress
        content = note.encode()
        head = HEAD.pack(0, len(content), done, math.nan if total is None else total)
        slot = zlib.crc32(content, zlib.crc32(head, claim)).to_bytes(4, sys.byteorder) + head[4:] + content
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
                return Progress(done, None if math.isnan(total) else total, content.decode("utf-8", "replace"))
        return None


def _claim_number(run: ClaimedRun) -> int:
    """Return a number that tells reports of one claim of a run from those of another."""
    return zlib.crc32(f"{run.id} {run.attempt} {run.locked_by}".encode())
