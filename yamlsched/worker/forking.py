"""Forking processes of the worker, and detaching them from what is the worker's."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any

from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.programs import die_with

Pipe = tuple[int, int]
"""The descriptor to read from, and the one to write to."""
WORKER_SIGNALS = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGCHLD,
}  # the signals that the worker handles
PYTHON_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
"""What Python does at signals that may be sent to all processes at once."""


def fork(
    kind: str, pipe_count: int, do: Callable[[int, list[Pipe]], object]
) -> tuple[int, list[Pipe]]:
    """Fork a process that calls ``do`` with the worker's process id and new pipes; return its id
    and the pipes.

    ``do`` calls ``detach``, and does not return. Raises EnvironmentFailed when the system refuses.
    """
    pipes: list[Pipe] = []
    parent = os.getpid()  # not to be asked for after the fork, when it may have died
    # A signal that arrives before `detach` unblocks them in the new process would be written into
    # the pipe through which the worker receives its own.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
    try:
        for _ in range(pipe_count):
            pipes.append(os.pipe())
        pid = os.fork()
        if pid == 0:
            try:
                do(parent, pipes)
            finally:
                os._exit(1)  # whatever happens: this is not the worker
    except OSError as error:
        for descriptor in (descriptor for pipe in pipes for descriptor in pipe):
            os.close(descriptor)
        raise EnvironmentFailed(f"no {kind} process can be started: {error.strerror}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid, pipes


def accept_signals() -> None:
    """Let the worker's signals arrive, whatever its launcher has blocked or ignored.

    SIGTERM, SIGINT and SIGHUP get handlers later. Where SIGCHLD is ignored, the exit codes of
    children are lost.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)


def detach(parent: int, keep: Iterable[int]) -> None:
    """Reset what a fork of the worker inherited: its signal handlers, and all descriptors except
    those to ``keep``.

    Signals that may be sent to all processes at once (a shutdown, ``pkill``, Ctrl-C) are ignored:
    the worker decides.

    A descriptor is pointed at /dev/null and not closed. Otherwise its number would be given to a
    file of the handler, and code that still takes it for the worker's session would write into that
    file.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in PYTHON_SIGNALS:
        # not SIG_IGN, which the programs that handlers start would inherit
        signal.signal(number, ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with(parent)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _open_descriptors():
        if descriptor not in keep and descriptor != null:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def reset_signals_in_forks() -> None:
    """Let SIGTERM, SIGHUP and SIGINT act as in Python in the processes that handlers fork:
    ``terminate()`` ends them.

    A signal handler that a handler has set itself stays. The signals are blocked until then: none
    is lost.
    """
    inherited = {number: signal.getsignal(number) for number in PYTHON_SIGNALS}
    mask = threading.local()

    def block() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, PYTHON_SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def reset() -> None:
        for number, handler in inherited.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, PYTHON_SIGNALS[number])
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def ignore(signum: int, frame: object) -> None:
    """Do nothing."""


def _open_descriptors() -> list[int]:
    descriptors = []
    for descriptor in map(int, os.listdir("/dev/fd")):
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # the one that the folder was read through
        descriptors.append(descriptor)
    return descriptors


class PipeWriter:
    """Writes to a pipe: what it does not take now is kept, and written once its reader has made
    room.

    A reader that has died is not an error: whoever waits for its answers finds out.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._unwritten = bytearray()
        self._loop = asyncio.get_running_loop()

    @property
    def is_flushed(self) -> bool:
        """Whether the pipe has taken everything: more would only wait in the memory of this
        process.
        """
        return not self._unwritten

    def write(self, content: bytes) -> None:
        is_waiting = bool(self._unwritten)
        self._unwritten += content
        if not is_waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._descriptor, self._unwritten)]
        except BlockingIOError:
            self._loop.add_writer(self._descriptor, self._flush)
            return
        except OSError:
            self._unwritten.clear()
        self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        self._unwritten.clear()
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
