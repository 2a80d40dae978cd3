"""A child of coroutines whose event loop is blocked: how its parent notices, and where that was."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sysconfig
from traceback import FrameSummary, format_list
from typing import IO

from yamlsched.worker.local.protocol import LoopStep

BLOCKED_SECONDS = 3.0  # for which one step of a coroutine may take
BLOCKED_FOR = f"blocked the event loop for {BLOCKED_SECONDS:.0f}s"
IMPORT_SECONDS = 60.0  # for which the import of a handler may take
MAX_INTERVAL_SECONDS = 0.5  # between two looks: the host may have stood still for longer
DUMP_SIGNAL = signal.SIGQUIT
MAX_DUMP_BYTES = 1 << 16
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Stall:
    """For how long a child's event loop has been seen in the same step."""

    def __init__(self) -> None:
        self._step: LoopStep | None = None
        self._seen_at = self._seconds = 0.0

    def is_over(self, step: LoopStep, now: float) -> bool:
        """Observe ``step``; return whether it takes too long."""
        if step == self._step:
            self._seconds += min(now - self._seen_at, MAX_INTERVAL_SECONDS)
        else:
            self._step, self._seconds = step, 0.0
        self._seen_at = now
        return self._seconds >= (IMPORT_SECONDS if step.is_import else BLOCKED_SECONDS)


def dump_on_signal(file: IO[bytes]) -> None:
    """Child: have the stack of this thread written to ``file`` at DUMP_SIGNAL, also while C code
    holds the interpreter lock.
    """
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=False)


def read_dump(file: IO[bytes]) -> tuple[str, str]:
    """Parent: return the place where a child was blocked, and the stack of the handler; both are
    empty if the child has written none.

    The place is the innermost frame that is the project's: neither a library's nor ours.
    """
    text = os.pread(file.fileno(), MAX_DUMP_BYTES, 0).decode("utf-8", "replace")
    frames = [
        FrameSummary(match[1], int(match[2]), match[3])  # the innermost first
        for match in map(FRAME.fullmatch, text.rpartition("Stack (")[2].splitlines())
        if match is not None
    ]
    if not frames:
        return "", ""
    outside = (*LIBRARIES, OWN_FOLDER, "<")
    of_project = [frame for frame in frames if not frame.filename.startswith(outside)]
    place = (of_project or frames)[0]
    own = [frame.filename.startswith(OWN_FOLDER) for frame in frames]
    of_handler = frames[: own.index(True)] if True in own else frames
    return f"{place.filename}:{place.lineno}", "".join(format_list((of_handler or frames)[::-1]))
