"""Work that would hold up the worker, done in a forked process of its own."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from yamlsched.errors import EnvironmentFailed
from yamlsched.worker import forking

T = TypeVar("T")


async def run_in_helper(do: Callable[[], T]) -> T:
    """Return what ``do`` returns in a forked process, or raise what it raises there. If cancelled, kill the process.

    Raises EnvironmentFailed when it cannot be started, or dies without a result. Of the worker's descriptors it has
    only stdout and stderr.
    """
    pid, reading = _fork(do)
    os.set_blocking(reading, False)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    answer = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(reading, 1 << 20)
            except BlockingIOError:
                return
            if not piece:
                loop.remove_reader(reading)
                ended.set()
                return
            answer.extend(piece)

    loop.add_reader(reading, read)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.kill(pid, signal.SIGKILL)  # it has closed its pipe, or is not needed: waiting for its exit takes no time
        os.waitpid(pid, 0)
    try:
        value, error = pickle.loads(answer)
    except (EOFError, pickle.UnpicklingError) as failure:
        raise EnvironmentFailed("the helper process died without a result") from failure
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _fork(do: Callable[[], object]) -> tuple[int, int]:
    """Start the process; return its id and the pipe that its answer arrives on."""
    parent = os.getpid()
    pipe: tuple[int, ...] = ()
    try:
        pipe = reading, writing = os.pipe()
        with forking.signals_blocked():
            pid = os.fork()
            if pid == 0:
                try:
                    forking.detach(parent, keep=(0, 1, 2, writing))
                    sys.stderr = sys.__stderr__  # the worker's own replacement belongs to its event loop
                    _answer(writing, do)
                finally:
                    os._exit(1)
    except OSError as error:
        for descriptor in pipe:
            os.close(descriptor)
        raise EnvironmentFailed(f"no helper process can be started: {error.strerror}") from error
    os.close(writing)
    return pid, reading


def _answer(writing: int, do: Callable[[], object]) -> None:
    try:
        content = pickle.dumps((do(), None))
    except Exception as error:
        try:
            content = pickle.dumps((None, error))
            pickle.loads(content)
        except Exception:
            content = pickle.dumps((None, EnvironmentFailed(f"{type(error).__name__}: {error}")))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(content)
    os._exit(0)
