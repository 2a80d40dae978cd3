"""The parent's side of one child: its pipes, what it holds, how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from yamlsched.definitions.job import Job
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs import ClaimedRun, Ending
from yamlsched.worker import clock
from yamlsched.worker.executors.processes.bootstrap import signals_blocked
from yamlsched.worker.executors.processes.output import Output
from yamlsched.worker.executors.processes.protocol import GO_ON, NOT_STARTED, PLACES, Frames, Memory, Task, frame
from yamlsched.worker.executors.processes.runner import CLOSED_PIPES


@dataclass(slots=True, eq=False)
class Attempt:
    """A run that this worker holds, from its claim to its outcome."""

    run: ClaimedRun
    job: Job
    lease_ends: float  # on the clock that counts suspend, counted from before the claim was sent
    renewed: float
    started_at: float | None = None
    waits_since: float = 0.0
    stopped: Ending | None = None  # why its child is being killed
    is_lost: bool = False  # somebody else's by now: whatever comes of it is discarded
    failed_starts: int = 0  # children that died with it in their hands before they started anything


@dataclass(slots=True, eq=False)
class ChildHandle:
    """One child, as its parent knows it."""

    pid: int
    commands: int
    results: int
    memory: Memory
    output: Output
    loop: asyncio.AbstractEventLoop
    frames: Frames = field(default_factory=Frames)
    assigned: dict[int, Attempt] = field(default_factory=dict)  # by place
    withdrawn: set[int] = field(default_factory=set)  # places of runs taken back that it has not come upon yet
    unwritten: bytearray = field(default_factory=bytearray)
    next_place: int = 0
    handed: int = 0
    kill_at: float | None = None
    is_ending: bool = False  # gets no more runs
    is_closed: bool = False  # has been told to end
    is_stuck: bool = False  # its run takes long: what would wait behind it goes elsewhere
    is_hung: bool = False  # it starts nothing of what it was handed, and is killed
    idle_since: float = 0.0
    active_at: float = 0.0  # when it was last known to be at work, or without work

    @property
    def has_read(self) -> bool:
        """Whether the pipe has taken all that was handed over: more would only wait in our memory."""
        return not self.unwritten

    def current(self) -> Attempt | None:
        """Return the run whose handler is executing now."""
        place = self.memory.running()
        return None if place is None else self.assigned.get(place)

    def latest(self) -> Attempt | None:
        """Return the run that began last: what is printed is its."""
        for place in reversed(self.assigned):
            if self.memory.state(place) != NOT_STARTED:
                return self.assigned[place]
        return None

    def send(self, runs: Iterable[Attempt]) -> None:
        """Hand over ``runs``, of which there are fewer than places."""
        tasks: list[Task] = []
        if not self.assigned:
            self.active_at = clock.now()
        assigned, withdrawn, place = self.assigned, self.withdrawn, self.next_place
        for held in runs:
            while place in assigned or place in withdrawn:
                place = (place + 1) % PLACES
            assigned[place] = held
            run, job = held.run, held.job
            dead_run = run.dead_run_id if run.key else None
            handler = job.handler if dead_run is None else job.on_dead or ""
            tasks.append((place, handler, run.payload, dead_run, job.timeout.total_seconds(), tuple(run)))
            self.memory.clear(place)
            place = (place + 1) % PLACES
        self.next_place = place
        self.handed += len(tasks)
        self._write(frame(tasks))

    def go_on(self) -> None:
        """Say that what the run printed has been read."""
        self._write(frame(GO_ON))

    def withdraw(self) -> list[Attempt]:
        """Take back the runs that it has not begun."""
        back = []
        for place, held in list(self.assigned.items()):
            if self.memory.withdraw(place):
                del self.assigned[place]
                self.withdrawn.add(place)
                back.append(held)
        return back

    def heard(self, place: int) -> Attempt | None:
        """Return the run at ``place``, which it holds no more; None: it was taken back."""
        held = self.assigned.pop(place, None)
        self.withdrawn.discard(place)
        self.memory.clear(place)
        self.is_stuck = False
        if not self.assigned:
            self.idle_since = clock.now()
        return held

    def succeeded(self, successes: list[tuple[int, float]]) -> list[tuple[Attempt, float]]:
        """Return the runs at these places, which it holds no more, each with the seconds that it took."""
        pop = self.assigned.pop
        ends = [(held, took) for place, took in successes if (held := pop(place, None)) is not None]
        if len(ends) < len(successes):
            self.withdrawn.difference_update(place for place, _ in successes)
        self.is_stuck = False
        if not self.assigned:
            self.idle_since = clock.now()
        return ends

    def _write(self, content: bytes) -> None:
        is_waiting = bool(self.unwritten)
        self.unwritten += content
        if not is_waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            while self.unwritten:
                del self.unwritten[: os.write(self.commands, self.unwritten)]
        except BlockingIOError:
            self.loop.add_writer(self.commands, self._flush)
            return
        except OSError:
            self.unwritten.clear()  # it has died: its end is reaped, and its runs are known
        self.loop.remove_writer(self.commands)

    def end(self) -> None:
        """Let it end, now that it has nothing to do: it does when its pipe closes."""
        self.is_ending = self.is_closed = True
        self.loop.remove_writer(self.commands)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.commands, inheritable=False)
        os.close(null)

    def signal(self, number: signal.Signals) -> None:
        """Signal it and what it has started: it leads a process group of its own."""
        for send in (os.killpg, os.kill):
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):
                continue
            return

    def stop(self) -> None:
        """Ask it to stop its handler. Without the word beforehand it takes no notice of SIGTERM."""
        self.memory.request_stop()
        self.signal(signal.SIGTERM)

    def close(self) -> None:
        """Let go of its pipes; it has ended."""
        for descriptor in (self.commands, self.results, self.output.descriptor):
            self.loop.remove_reader(descriptor)
            self.loop.remove_writer(descriptor)
            os.close(descriptor)


def fork(start: Callable[[int, int, int, int, Memory], Any]) -> ChildHandle:
    """Start a child, which calls ``start`` with our process id and its ends of the pipes: commands, results, output.

    Raises EnvironmentFailed when the system gives no process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pipes: list[int] = []
    parent = os.getpid()  # not to be asked for after the fork, when it may have died
    with signals_blocked():
        try:
            for _ in range(3):
                pipes += os.pipe()
            memory = Memory()
            pid = os.fork()
        except OSError as error:
            for descriptor in pipes:
                os.close(descriptor)
            raise EnvironmentFailed(f"no child process can be started: {error.strerror}") from error
        command_read, command_write, result_read, result_write, output_read, output_write = pipes
        if pid == 0:
            try:
                start(parent, command_read, result_write, output_write, memory)
            finally:
                os._exit(1)  # whatever happens: this is not the parent
    for descriptor in (command_read, result_write, output_write):
        os.close(descriptor)
    for descriptor in (command_write, result_read, output_read):
        os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    return ChildHandle(pid, command_write, result_read, memory, Output(output_read), loop, idle_since=clock.now())


def cause(status: int, when: str = " during the run") -> str:
    """Return in words how a process ended, from its wait status, and ``when`` if it exited by itself."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        hint = ", possibly out of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number} ({name}){hint}"
    code = os.waitstatus_to_exitcode(status)
    if code == CLOSED_PIPES:
        return "the handler closed file descriptors that it did not open, including its connection to yamlsched"
    return f"the process exited with status {code}{when}"
