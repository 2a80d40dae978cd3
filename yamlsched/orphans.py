"""What becomes of processes whose parents die, where the kernel can decide it: on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies: nothing else would stop what it executes.

    ``parent`` is its process id from before the fork: it may have died since.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def survive_parent() -> None:
    """Undo ``die_with``: this process has something to do when its parent has died."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans(does_adopt: bool) -> None:
    """Let processes whose parents die become children of this one, so that it reaps them."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, int(does_adopt))
