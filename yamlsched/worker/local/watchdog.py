"""The watchdog of a child of coroutines: kills it if its event loop is blocked, and notes where."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType

from yamlsched.worker.local.protocol import WATCH_INTERVAL_SECONDS, Memory, Stall

MAX_FRAMES = 60
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Watchdog(threading.Thread):
    """Watches the thread that creates it."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(name="yamlsched-watchdog", daemon=True)
        self._memory, self._watched = memory, threading.get_ident()

    def run(self) -> None:
        stall = Stall()
        while True:
            time.sleep(WATCH_INTERVAL_SECONDS)
            step = self._memory.step()
            is_over = stall.is_over(step, time.monotonic())
            if is_over and (frame := sys._current_frames().get(self._watched)) is not None:
                stack = handler_stack(frame)
                if self._memory.step() == step:  # else it has ended this moment
                    self._memory.write_note(f"{place(frame)}\n{stack}")
                    os.kill(os.getpid(), signal.SIGKILL)


def place(frame: FrameType) -> str:
    """Return file and line of the innermost frame that is the project's: neither a library's nor
    ours.
    """
    current: FrameType | None = frame
    while current is not None:
        file = current.f_code.co_filename
        if not file.startswith((*LIBRARIES, OWN_FOLDER, "<")):
            return f"{file}:{current.f_lineno}"
        current = current.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def handler_stack(frame: FrameType) -> str:
    """Return the stack of ``frame``, without our own frames and those of the event loop before the
    handler's.
    """
    stack = traceback.extract_stack(frame, limit=MAX_FRAMES)
    own = [place for place, each in enumerate(stack) if each.filename.startswith(OWN_FOLDER)]
    return "".join(traceback.format_list(stack[own[-1] + 1 if own else 0 :] or stack))
