"""A thread that kills a shared child in which one coroutine does not let the others execute."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType

from yamlsched.worker.executors.shared.board import Board, Step

BLOCKED_SECONDS = 3.0  # for which one step of a coroutine may take
IMPORT_SECONDS = 60.0  # for which the import of a handler may take
INTERVAL_SECONDS = 0.25
MAX_FRAMES = 60
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Stall:
    """For how long a child has been seen in the same step.

    Intervals in which the observer itself was not executed do not count: the whole host may have stood still.
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._seen_at = 0.0
        self.seconds = 0.0

    def observe(self, step: Step, now: float) -> None:
        if step != self._step:
            self._step, self.seconds = step, 0.0
        else:
            self.seconds += min(now - self._seen_at, 2 * INTERVAL_SECONDS)
        self._seen_at = now

    def is_over(self, margin: float = 0.0) -> bool:
        """Return whether the step takes too long, by more than ``margin`` seconds."""
        limit = IMPORT_SECONDS if self._step is not None and self._step.is_import else BLOCKED_SECONDS
        return self.seconds >= limit + margin


class Watchdog(threading.Thread):
    """Watches the thread that creates it, while ``busy`` is set."""

    def __init__(self, board: Board) -> None:
        super().__init__(name="yamlsched-watchdog", daemon=True)
        self.busy = threading.Event()
        self._board, self._watched = board, threading.get_ident()

    def run(self) -> None:
        stall = Stall()
        while True:
            self.busy.wait()
            time.sleep(INTERVAL_SECONDS)
            step = self._board.step()
            stall.observe(step, time.monotonic())
            if stall.is_over() and (frame := sys._current_frames().get(self._watched)) is not None:
                stack = handler_stack(frame)
                if self._board.step() == step:  # else it has ended this moment
                    self._board.write_note(f"{place(frame)}\n{stack}")
                    os.kill(os.getpid(), signal.SIGKILL)


def place(frame: FrameType) -> str:
    """Return file and line of the innermost frame that is the project's: neither a library's nor ours."""
    found: FrameType | None = frame
    while found is not None:
        file = found.f_code.co_filename
        if not file.startswith((*LIBRARIES, OWN_FOLDER, "<")):
            return f"{file}:{found.f_lineno}"
        found = found.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def handler_stack(frame: FrameType) -> str:
    """Return the stack of ``frame``, without our own frames and those of the event loop before the handler's."""
    stack = traceback.extract_stack(frame, limit=MAX_FRAMES)
    own = [place for place, each in enumerate(stack) if each.filename.startswith(OWN_FOLDER)]
    return "".join(traceback.format_list(stack[own[-1] + 1 if own else 0 :] or stack))
