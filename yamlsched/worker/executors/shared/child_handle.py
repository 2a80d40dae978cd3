"""The parent's side of one shared child: its pipes, and the attempts that it is executing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from yamlsched.worker import clock, forking
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.executors.processes.bootstrap import Environment
from yamlsched.worker.executors.processes.output import Output
from yamlsched.worker.executors.processes.protocol import Frames, frame
from yamlsched.worker.executors.shared.board import NOT_STARTED, START, STOP, WITHDRAW, Batch, Board
from yamlsched.worker.executors.shared.watchdog import Stall
from yamlsched.worker.forking import Pipe

MAX_READS = 16
MAX_READ_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 1 << 18  # of payload


@dataclass(slots=True, eq=False)
class InFlight:
    """An attempt that a child has. Instants are those of ``clock.now``."""

    index: int
    attempt: Attempt
    sent_at: float
    times_out_at: float | None = None  # once it has started
    output: Output | None = None  # once it has printed something
    kill_at: float | None = None  # it is stopped; by then it must have ended


@dataclass(slots=True, eq=False)
class SharedChild:
    """One shared child, as its parent knows it."""

    pid: int
    commands: int
    results: int
    output: Output  # what belongs to no attempt
    board: Board
    loop: asyncio.AbstractEventLoop
    frames: Frames = field(default_factory=Frames)
    in_flight: dict[int, InFlight] = field(default_factory=dict)  # by index
    free: list[int] = field(default_factory=list)  # indexes
    unsent: bytearray = field(default_factory=bytearray)
    sent_count: int = 0  # tasks so far
    stall: Stall = field(default_factory=Stall)
    idle_since: float = 0.0
    is_retired: bool = False  # gets no more tasks
    is_closed: bool = False  # its pipe of commands is closed, so that it exits
    kill_at: float | None = None
    killed_for: tuple[Attempt | None, str] | None = None  # the attempt that was the reason, and what it did

    def send(self, attempts: Iterable[Attempt], limit: int) -> None:
        """Have ``attempts``, no more than free indexes, started as soon as fewer than ``limit`` are executing."""
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
                self._write(frame((START, limit, tasks)))
                tasks, size = [], 0
            self.sent_count += 1
        if tasks:
            self._write(frame((START, limit, tasks)))

    def stop(self, indexes: list[int]) -> None:
        """Have the attempts at ``indexes`` cancelled."""
        self._write(frame((STOP, indexes)))

    def withdraw(self) -> None:
        """Have what has not started returned."""
        self._write(frame((WITHDRAW,)))

    def receive(self) -> Iterator[Batch]:
        """Yield what it reports. Raises ValueError or TypeError for what no child sends."""
        for _ in range(MAX_READS):
            try:
                piece = os.read(self.results, MAX_READ_BYTES)
            except BlockingIOError:
                return
            if not piece:
                raise EOFError
            for content in self.frames.feed(piece):
                yield Batch(*content)

    def take(self, index: int) -> InFlight | None:
        """Return what was at ``index``, which is free now."""
        if (flight := self.in_flight.pop(index, None)) is not None:
            self._read_progress(flight)
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
            attempt.progress = self.board.progress.read(flight.index, attempt.run) or attempt.progress

    def state(self, flight: InFlight) -> int:
        return self.board.state(flight.index)

    def has_started(self, flight: InFlight) -> bool:
        return self.board.state(flight.index) != NOT_STARTED

    def executing(self) -> Attempt | None:
        """Return the attempt whose code is executing, or was when the child died."""
        index = self.board.step().executing
        flight = None if index is None else self.in_flight.get(index)
        return None if flight is None else flight.attempt

    def _write(self, content: bytes) -> None:
        is_waiting = bool(self.unsent)
        self.unsent += content
        if not is_waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: os.write(self.commands, self.unsent)]
        except BlockingIOError:
            self.loop.add_writer(self.commands, self._flush)
            return
        except OSError:
            self.unsent.clear()  # it has died: the end of its results follows
        self.loop.remove_writer(self.commands)

    def close_input(self) -> None:
        """Let it exit, now that it has nothing to do."""
        self.is_retired = self.is_closed = True
        self.loop.remove_writer(self.commands)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.commands, inheritable=False)
        os.close(null)

    def kill(self) -> None:
        """Kill it, and what its handlers have started: it leads its own process group."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close its pipes; it has ended."""
        for descriptor in (self.commands, self.results, self.output.descriptor):
            self.loop.remove_reader(descriptor)
            self.loop.remove_writer(descriptor)
            os.close(descriptor)


def fork(environment: Environment, capacity: int) -> SharedChild:
    """Start a child for up to ``capacity`` attempts at once. Raises EnvironmentFailed when the system refuses."""
    from yamlsched.worker.executors.shared import runner  # before the fork: its children share what was imported

    sys.stdout.flush()
    sys.stderr.flush()
    board = Board(capacity)

    def run(parent: int, pipes: list[Pipe]) -> None:
        (commands, _), (_, results), (_, output) = pipes
        runner.run(parent, runner.Channel(commands, results, output, board), environment)

    pid, pipes = forking.fork("shared child", 3, run)
    (command_read, commands), (results, result_write), (output, output_write) = pipes
    for descriptor in (command_read, result_write, output_write):
        os.close(descriptor)
    for descriptor in (commands, results, output):
        os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    free = list(range(capacity - 1, -1, -1))
    return SharedChild(pid, commands, results, Output(output), board, loop, free=free, idle_since=clock.now())
