"""What the worker knows of a child process of either pool: its pipes, and when it is to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from yamlsched.handling.sessions import ConnectionPermits
from yamlsched.worker import clock, forking
from yamlsched.worker.executors.processes.output import Output
from yamlsched.worker.executors.processes.protocol import Frames
from yamlsched.worker.forking import Pipe
from yamlsched.worker.pipes import PipeWriter
from yamlsched.worker.workload import Workload

MAX_READS = 16  # of one child's messages in a row, so that a child that writes endlessly does not block the others
MAX_READ_BYTES = 1 << 16  # what a pipe holds; a buffer of a megabyte takes longer than most reads


@dataclass(frozen=True)
class Environment:
    """What children inherit from the worker."""

    workload: Workload
    pgtz: str | None  # the variable PGTZ, as it was before the worker set it
    session_permits: ConnectionPermits | None  # for the sessions of handlers


class ChildProcess:
    """One child, which leads a process group of its own. Instants are those of ``clock.now``."""

    def __init__(self, kind: str, do: Callable[[int, int, int, int], object]) -> None:
        """Fork. In the child, ``do`` gets the worker's process id, and the pipes: commands, results, output.

        Raises EnvironmentFailed when the system refuses.
        """
        sys.stdout.flush()
        sys.stderr.flush()

        def run(parent: int, pipes: list[Pipe]) -> None:
            (commands, _), (_, results), (_, output) = pipes
            do(parent, commands, results, output)

        self.pid, pipes = forking.fork(kind, 3, run)
        (command_read, commands), (self.results, result_write), (output, output_write) = pipes
        for descriptor in (command_read, result_write, output_write):
            os.close(descriptor)
        for descriptor in (self.results, output):
            os.set_blocking(descriptor, False)
        self.loop = asyncio.get_running_loop()
        self.commands, self.output, self.frames = PipeWriter(commands), Output(output), Frames()
        self.sent_count = 0  # tasks so far
        self.is_retired = False  # gets no more tasks
        self.is_closed = False  # its pipe of commands is closed, so that it exits
        self.idle_since = clock.now()
        self.kill_at: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it holds no attempts."""
        raise NotImplementedError

    def read_results(self) -> Iterator[bytes]:
        """Yield what there is to read of its messages; an empty piece is their end."""
        for _ in range(MAX_READS):
            try:
                piece = os.read(self.results, MAX_READ_BYTES)
            except BlockingIOError:
                return
            yield piece
            if not piece:
                return

    def close_input(self) -> None:
        """Let it exit, now that it has nothing to do: it does when its pipe closes."""
        self.is_retired = self.is_closed = True
        self.commands.disconnect()

    def signal(self, number: signal.Signals) -> None:
        """Signal it and what it has started."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)
                return

    def kill(self) -> None:
        """Kill it, and what it has started."""
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def kill_group(self) -> None:
        """Kill what it had started, and would outlive it; it has ended, and its id may be that of another process."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_by(self, instant: float) -> None:
        """Have it killed at ``instant``, or at an earlier one that was set before."""
        self.kill_at = instant if self.kill_at is None else min(self.kill_at, instant)

    def close(self) -> None:
        """Close its pipes; it has ended."""
        self.commands.close()
        for descriptor in (self.results, self.output.descriptor):
            self.loop.remove_reader(descriptor)
            os.close(descriptor)
