"""What a child does between its fork and its first run: let go of what is the parent's."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from yamlsched.worker.child import Child
from yamlsched.worker.wire import Memory

if TYPE_CHECKING:
    from yamlsched.worker.worker import Work

PR_SET_PDEATHSIG = 1


def run(commands: int, results: int, output: int, memory: Memory, sockets: list[int], work: Work) -> NoReturn:
    """Become a child that carries out runs. Leaves by ``os._exit``: nothing of the parent's is cleaned up here."""
    parent = os.getppid()
    try:
        os.setpgid(0, 0)  # a signal to the group reaches what handlers start, and not the parent
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which decides
        _die_with(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, *sockets):
            os.dup2(null, descriptor)  # closing would end the session for the parent, keeping would outlive it
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        sys.path[:0] = [place for place in work.path if place not in sys.path[:1]]
    except BaseException as error:
        os.write(2, f"yamlsched: a child cannot start: {error}\n".encode())
        os._exit(71)
    Child(commands, results, output, memory, work.dsn, work.namespace).main()


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, where it can: nobody would stop its handler else."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
