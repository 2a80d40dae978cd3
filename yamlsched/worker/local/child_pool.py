"""What both pools of child processes have in common: the attempts that wait for a child, and when
children end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from yamlsched.errors import EnvironmentFailed
from yamlsched.runs.lifecycle import WORKER_DIED, AttemptEnd, EndKind
from yamlsched.worker import clock, forking
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.executor import EventQueue, ReturnedUnstarted
from yamlsched.worker.forking import Pipe, PipeWriter
from yamlsched.worker.local.output import OutputPipe
from yamlsched.worker.local.protocol import CLOSED_PIPES, Frames
from yamlsched.worker.permits import Permits

KILL_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL


def exit_cause(status: int, when: str = " during the run") -> str:
    """Describe how a process ended, from its wait status; ``when`` is appended if it exited by
    itself.
    """
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
        return (
            "the handler closed file descriptors that it did not open, including its connection to"
            " yamlsched"
        )
    return f"the process exited with status {code}{when}"


# of one child's messages in a row, so that a child that writes endlessly does not block the others
MAX_READS = 16
MAX_READ_BYTES = 1 << 16  # what a pipe holds; a buffer of a megabyte takes longer than most reads


@dataclass(frozen=True)
class Environment:
    """What children inherit from the worker."""

    workload: Workload
    pgtz: str | None  # the variable PGTZ, as it was before the worker set it


class ChildProcess:
    """One child, which leads a process group of its own. Instants are those of ``clock.now``."""

    def __init__(self, kind: str, do: Callable[[int, int, int, int], object]) -> None:
        """Fork. In the child, ``do`` gets the worker's process id, and the pipes: commands,
        results, output.

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
        self.commands, self.output, self.frames = PipeWriter(commands), OutputPipe(output), Frames()
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
        """Kill what it had started, and would outlive it; it has ended, and its id may be that of
        another process.
        """
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


MAX_FAILED_FORKS = 6  # children in a row that died before they were ready: then no more are started
# children that died with an attempt that they had not started: then it has failed
MAX_FAILED_STARTS = 3
MAX_IDLE_SECONDS = 300.0  # for which a child is kept that has nothing to do
Child = TypeVar("Child", bound=ChildProcess)


class ChildPool(ABC, Generic[Child]):
    """Executes attempts in child processes, at most as many at once as there are permits."""

    def __init__(self, workload: Workload, permits: Permits, events: EventQueue) -> None:
        self._environment = Environment(workload, os.environ.get("PGTZ"))
        self._permits, self._events = permits, events
        self._children: dict[int, Child] = {}  # by process id
        self._waiting: deque[Attempt] = deque()
        self._failed_starts: Counter[Attempt] = Counter()
        self._failed_forks, self._fork_failure = 0, ""
        self._is_dispatching = self._is_draining = False

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Hand ``attempts`` to children soon."""
        self._waiting.extend(attempts)
        self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        if self._waiting and not self._is_dispatching:
            self._is_dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    @abstractmethod
    def _dispatch(self) -> None:
        """Hand waiting attempts to children. Sets ``_is_dispatching`` to false."""

    def _return_stopped(self) -> None:
        if stopped := [attempt for attempt in self._waiting if attempt.stopped is not None]:
            self._waiting = deque(attempt for attempt in self._waiting if attempt.stopped is None)
            self._events.put(ReturnedUnstarted(stopped))

    def _return_waiting(self) -> None:
        if self._waiting:
            self._events.put(ReturnedUnstarted(list(self._waiting)))
            self._waiting.clear()

    def _check_forks(self) -> None:
        """Raise EnvironmentFailed if it is pointless to start another child."""
        if self._failed_forks >= MAX_FAILED_FORKS:
            raise EnvironmentFailed(
                f"child processes die before they are ready for a run: {self._fork_failure}"
            )

    def _note_fork(self, was_ready: bool, status: int) -> None:
        """Note how a child has ended: whether it had been ready for a run, and its wait status."""
        self._failed_forks = 0 if was_ready else self._failed_forks + 1
        self._fork_failure = exit_cause(status, "")

    def _failed_start(self, attempt: Attempt, status: int) -> AttemptEnd | None:
        """Count the death of a child that had not started ``attempt``; after a few of them, return
        its end.
        """
        self._failed_starts[attempt] += 1
        if self._failed_starts[attempt] < MAX_FAILED_STARTS or attempt.stopped is not None:
            return None
        why = (
            f"{MAX_FAILED_STARTS} child processes died before they could start it:"
            f" {exit_cause(status, '')}"
        )
        return AttemptEnd(EndKind.RAISED, why, WORKER_DIED)

    def reload(self, workload: Workload) -> None:
        """Let children exit after what they hold. New ones import the handlers of ``workload``."""
        self._environment = replace(self._environment, workload=workload)
        self._retire_all()

    def _retire_all(self) -> None:
        for child in self._children.values():
            child.is_retired = True
        self._close_idle(clock.now())

    def _close_idle(self, now: float) -> None:
        for child in self._children.values():
            is_old = now - child.idle_since > MAX_IDLE_SECONDS
            if child.is_idle and not child.is_closed and (child.is_retired or is_old):
                child.close_input()
                child.kill_by(now + KILL_GRACE_SECONDS)


MAX_MESSAGE_SECONDS = 0.005  # of expected work in one message to a child
MAX_MESSAGE_RUNS = 200
LOOKAHEAD_SECONDS = 0.08  # of expected work that may be claimed ahead for one child
# an attempt that takes less may have others waiting behind it in the same child
QUICK_SECONDS = 0.04
SHORTEST_SECONDS = 1e-7


class Estimates:
    """Moving averages of the seconds that attempts take."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # by job
        self._typical: float | None = None  # of all jobs

    def learn(self, job: str, seconds: float) -> None:
        """Note how long an attempt took."""
        self._seconds[job] = _average(self._seconds.get(job), seconds)
        self._typical = _average(self._typical, seconds)

    def is_quick(self, job: str) -> bool:
        """Return whether an attempt of ``job`` ends within some tens of milliseconds."""
        return self._seconds.get(job, QUICK_SECONDS) < QUICK_SECONDS

    def message_size(self, job: str) -> int:
        """Return how many runs of ``job`` make one message: 1 while nothing is known of the job."""
        seconds = self._seconds.get(job)
        if seconds is None:
            return 1
        return max(
            1, min(MAX_MESSAGE_RUNS, int(MAX_MESSAGE_SECONDS / max(seconds, SHORTEST_SECONDS)))
        )

    def runs_ahead(self) -> int:
        """Return how many runs one child can start within some tens of milliseconds."""
        ahead = (
            1
            if self._typical is None
            else int(LOOKAHEAD_SECONDS / max(self._typical, SHORTEST_SECONDS))
        )
        return max(1, min(4 * MAX_MESSAGE_RUNS, ahead))


def _average(known: float | None, seconds: float) -> float:
    """Return the new average. It falls faster than it rises, so that a slow first run is soon
    forgotten.
    """
    if known is None:
        return seconds
    return known + (0.5 if seconds < known else 0.2) * (seconds - known)
