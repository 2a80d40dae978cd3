"""What every process that the worker forks does first: detach from what is the worker's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
WORKER_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}  # the signals that the worker handles


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the worker's signals while it forks; ``detach`` unblocks them in the new process.

    A signal that arrived before would be written into the pipe through which the worker receives its own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def detach(parent: int, keep: Iterable[int]) -> None:
    """Reset what a fork of the worker inherited: its signal handlers, and all descriptors except those to ``keep``.

    Signals that may be sent to all processes at once (a shutdown, ``pkill``, Ctrl-C) are ignored: the worker decides.

    A descriptor is pointed at /dev/null and not closed. Otherwise its number would be given to a file of the handler,
    and code that still takes it for the worker's session would write into that file.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _ignore)  # not SIG_IGN, which the programs that handlers start would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)
    _die_with(parent)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _open_descriptors():
        if descriptor not in keep and descriptor != null:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _ignore(signum: int, frame: object) -> None:
    """Do nothing."""


def _open_descriptors() -> list[int]:
    found = []
    for descriptor in map(int, os.listdir("/dev/fd")):
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # the one that the folder was read through
        found.append(descriptor)
    return found


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, where it can: its handler would never be stopped.

    ``parent`` is its process id from before the fork: it may have died since.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
