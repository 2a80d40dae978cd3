"""Work that would hold up the parent, done in a forked process of its own."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from yamlsched.errors import EnvironmentFailed
from yamlsched.worker import forked

T = TypeVar("T")


async def aside(do: Callable[[], T]) -> T:
    """Return what ``do`` returns in a forked process, or raise what it raises there. Cancelled, it is killed.

    Raises EnvironmentFailed when it dies without a word. The process has no descriptors of the parent's but stdout
    and stderr, and is not waited for by anybody else.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            forked.let_go(parent, keep=(0, 1, 2, writing))
            sys.stderr = sys.__stderr__  # the worker's own way to write belongs to its event loop
            _tell(writing, do)
        finally:
            os._exit(1)
    os.close(writing)
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
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.waitpid(pid, 0)  # it has closed its pipe, which it does at its end
    if not answer:
        raise EnvironmentFailed("a process that was to help died")
    value, error = pickle.loads(answer)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _tell(writing: int, do: Callable[[], object]) -> None:
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
