"""Work that would block the worker, done in a forked process."""

from __future__ import annotations

import asyncio
import os
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

    def answer(parent: int, pipes: list[forking.Pipe]) -> None:
        forking.detach(parent, keep=(0, 1, 2, pipes[0][1]))
        sys.stderr = sys.__stderr__  # the worker's own replacement belongs to its event loop
        _answer(pipes[0][1], do)

    pid, [(reading, writing)] = forking.fork("helper", 1, answer)
    os.close(writing)
    stream = asyncio.StreamReader()
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
        )
        try:
            content = await stream.read()
        finally:
            transport.close()
    finally:
        os.kill(pid, signal.SIGKILL)  # it has closed its pipe, or is not needed: waiting for its exit takes no time
        os.waitpid(pid, 0)
    import pickle  # here, as few workers have helpers

    try:
        value, error = pickle.loads(content)
    except (EOFError, pickle.UnpicklingError) as failure:
        raise EnvironmentFailed("the helper process died without a result") from failure
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _answer(writing: int, do: Callable[[], object]) -> None:
    import pickle

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
