"""The parent's side of one shared child: the attempts that it is executing; and the permits of all
of a host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.shared import runner
from yamlsched.extras.shared.board import NOT_STARTED, START, STOP, WITHDRAW, Batch, Board
from yamlsched.extras.shared.loop import Stall
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.local.child_pool import ChildProcess, Environment
from yamlsched.worker.local.output import OutputPipe
from yamlsched.worker.local.protocol import CLOSED_PIPES, frame

MAX_MESSAGE_BYTES = 1 << 18  # of payload
REAP_TIMEOUT_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class InFlight:
    """An attempt that a child has. Instants are those of ``clock.now``."""

    index: int
    attempt: Attempt
    sent_at: float
    times_out_at: float | None = None  # once it has started
    output: OutputPipe | None = None  # once it has printed something
    kill_at: float | None = None  # it is stopped; by then it must have ended


class BytePermits:
    """Permits that all workers of one host share. A permit is a lock on a byte of one file.

    There may be a thousand: with a file for each, a worker would run out of descriptors.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.count, self._path = count, path
        self._file: IO[bytes] | None = None
        self._held: set[int] = set()

    @property
    def held(self) -> int:
        """How many permits this process holds."""
        return len(self._held)

    def fill(self, wanted: int) -> int:
        """Take free permits until ``wanted`` are held; return how many are. Raises
        EnvironmentFailed.
        """
        if self._file is None:
            try:
                self._file = self._path.open("ab")
            except OSError as error:
                raise EnvironmentFailed(
                    f"{self._path} cannot be opened: {error.strerror}"
                ) from error
        for byte in range(self.count):
            if len(self._held) >= wanted:
                break
            if byte not in self._held:
                with contextlib.suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                    self._held.add(byte)
        return len(self._held)

    def shrink(self, wanted: int) -> None:
        """Free permits until no more than ``wanted`` are held."""
        while len(self._held) > wanted and self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._held.pop())


class SharedChild(ChildProcess):
    """One shared child, for up to ``capacity`` attempts at once. Its ``output`` is what belongs to
    no attempt.
    """

    def __init__(self, environment: Environment, capacity: int) -> None:
        self.board = board = Board(capacity)

        def run(parent: int, commands: int, results: int, output: int) -> None:
            runner.run(parent, runner.SharedChannel(commands, results, output, board), environment)

        super().__init__("shared child", run)
        self.in_flight: dict[int, InFlight] = {}  # by index
        self.free = list(range(capacity - 1, -1, -1))  # indexes
        self.executed_count = 0  # attempts that had started and have ended
        self.stall = Stall()
        # the attempt that was the reason, and what it did
        self.killed_for: tuple[Attempt | None, str] | None = None

    @property
    def is_idle(self) -> bool:
        return not self.in_flight

    def send(self, attempts: Iterable[Attempt], limit: int) -> None:
        """Have ``attempts``, no more than free indexes, started as soon as fewer than ``limit`` are
        executing.
        """
        tasks: list[Any] = []
        size, now = 0, clock.now()
        for attempt in attempts:
            index, run, job = self.free.pop(), attempt.run, attempt.job
            self.board.clear(index)
            timeout = job.timeout.total_seconds()
            self.in_flight[index] = InFlight(index, attempt, now)
            tasks.append((index, job.handler or "", run.payload, timeout, tuple(run)))
            size += len(run.payload)
            if size > MAX_MESSAGE_BYTES:
                self.commands.write(frame((START, limit, tasks)))
                tasks, size = [], 0
            self.sent_count += 1
        if tasks:
            self.commands.write(frame((START, limit, tasks)))

    def stop(self, indexes: list[int]) -> None:
        """Have the attempts at ``indexes`` cancelled."""
        self.commands.write(frame((STOP, indexes)))

    def withdraw(self) -> None:
        """Have what has not started returned."""
        self.commands.write(frame((WITHDRAW,)))

    def receive(self) -> Iterator[Batch]:
        """Yield what it reports. Raises ValueError or TypeError for what no child sends."""
        for piece in self.read_results():
            if not piece:
                raise EOFError
            for content in self.frames.feed(piece):
                yield Batch(*content)

    def take(self, index: int) -> InFlight | None:
        """Return what was at ``index``, which is free now."""
        if (flight := self.in_flight.pop(index, None)) is not None:
            self._read_progress(flight)
            self.executed_count += self.has_started(flight)
            self.free.append(index)
            if not self.in_flight:
                self.idle_since = clock.now()
        return flight

    def read_progress(self) -> None:
        """Set the progress of its attempts, as their handlers have reported it."""
        for flight in self.in_flight.values():
            self._read_progress(flight)

    def _read_progress(self, flight: InFlight) -> None:
        if self.board.progress.is_used:
            attempt = flight.attempt
            attempt.progress = (
                self.board.progress.read(flight.index, attempt.run) or attempt.progress
            )

    def state(self, flight: InFlight) -> int:
        return self.board.state(flight.index)

    def has_started(self, flight: InFlight) -> bool:
        return self.board.state(flight.index) != NOT_STARTED

    def executing(self) -> Attempt | None:
        """Return the attempt whose code is executing, or was when the child died."""
        index = self.board.step().executing
        flight = None if index is None else self.in_flight.get(index)
        return None if flight is None else flight.attempt

    def reap(self) -> int:
        """Return the wait status of a child that has closed its pipe; one that lives on has lost
        it, and is killed.
        """
        with contextlib.suppress(ChildProcessError):
            # its pipes close a moment before it can be reaped
            deadline = clock.now() + REAP_TIMEOUT_SECONDS
            while clock.now() < deadline:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    return status
                time.sleep(0.001)
            self.kill()
            os.waitpid(self.pid, 0)
        return CLOSED_PIPES << 8
