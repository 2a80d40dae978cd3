"""What a handler may leave behind in its process: what is reset after it, and what only a new
process undoes.

The table for users is in docs/worker.md. A check takes a tenth of a millisecond.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import faulthandler
import os
import re
import resource
import signal
import sys

from yamlsched.handler.programs import adopt_orphans, die_with

MAX_PILED_UP = 100  # descriptors, or threads, more than before the first handler
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
NAMESPACES = ("ipc", "mnt", "net", "pid_for_children", "user", "uts")
FIELDS = re.compile(
    rb"^(?:Uid|Gid|Groups|SigIgn|Cap|NoNewPrivs|Seccomp|Cpus_allowed:|Mems_allowed:).*", re.M
)
"""Lines of /proc/self/status."""
MAX_STATUS_BYTES = 1 << 14


class ProcessState:
    """The state of a child before its first handler. ``parent`` is the worker's process id.

    ``is_shared``: by coroutines, which may have threads and descriptors while another one ends. The
    functions of ``signal`` that a handler must not call there are taken from ``_signal``.
    """

    def __init__(self, parent: int, is_shared: bool = False) -> None:
        self._parent, self._is_shared = parent, is_shared
        handlers = {number: _signal.getsignal(number) for number in signal.valid_signals()}
        # those that only C code can restore are left out
        self._handlers = {
            number: handler for number, handler in handlers.items() if handler is not None
        }
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._directory = _directory()
        # open from now on: reading is much faster than opening
        self._files = _open("status"), _open("oom_score_adj"), _open("ns")
        self._limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        self._threads, self._fixed = self._read()
        self._max_descriptor = _free_descriptor() + MAX_PILED_UP

    def restore(self) -> bool:
        """Reset what can be reset; return whether all else is as it was, so that another handler
        may follow.
        """
        try:
            self._reset()
            threads, fixed = self._read()
            has_piled_up = not self._is_shared and (
                _free_descriptor() > self._max_descriptor or threads > self._threads + MAX_PILED_UP
            )
        except (OSError, MemoryError, ValueError):
            return False  # by a limit, or because a descriptor or a directory is gone
        return fixed == self._fixed and not has_piled_up

    def _reset(self) -> None:
        for timer in TIMERS:
            _signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        _signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            if callable(handler) or _signal.getsignal(number) != handler:
                _signal.signal(number, handler)
        if signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            while pending := signal.sigpending():
                # what a handler has blocked must not hit the next one
                signal.sigtimedwait(pending, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(self._umask)
        if _directory() != self._directory:
            os.chdir(self._directory)
        adopt_orphans(False)
        die_with(self._parent)
        for limit, values in self._limits.items():
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)  # only root may raise a hard limit again

    def _read(self) -> tuple[int, tuple[object, ...]]:
        """Return the number of threads, and what cannot be reset."""
        status, oom_score, namespaces = self._files
        text = b"" if status is None else os.pread(status, MAX_STATUS_BYTES, 0)
        threads = text.partition(b"\nThreads:")[2].partition(b"\n")[0]
        root = os.stat("/")
        fixed: tuple[object, ...] = (
            FIELDS.findall(text),
            (os.getpriority(os.PRIO_PROCESS, 0), os.getpgrp(), os.getsid(0)),
            (root.st_dev, root.st_ino),
            None if oom_score is None else os.pread(oom_score, 16, 0),
            (
                None
                if namespaces is None
                else [os.readlink(name, dir_fd=namespaces) for name in NAMESPACES]
            ),
        )
        if sys.platform == "linux":
            fixed = (*fixed, os.sched_getscheduler(0))
        return int(threads or 1), fixed


def _open(name: str) -> int | None:
    with contextlib.suppress(OSError):  # not Linux, or no /proc
        return os.open(f"/proc/self/{name}", os.O_RDONLY)
    return None


def _directory() -> str:
    """Return the current directory; empty if it was removed."""
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return ""


def _free_descriptor() -> int:
    """Return the lowest number that no descriptor has: it rises where descriptors are left open."""
    descriptor = os.dup(1)
    os.close(descriptor)
    return descriptor
