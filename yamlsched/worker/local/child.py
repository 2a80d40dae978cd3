"""The parent's side of one child: the attempts that it holds, what it prints, and how it is
stopped.

A child of coroutines executes all that it holds; another one starts one attempt after the other.
The parent reads the output of the latter while no attempt can start or end, so that all of it is of
one; and a child whose attempt has left output in the pipe waits until the parent has read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from yamlsched import durations
from yamlsched.handler.programs import Program, signal_group
from yamlsched.runs.lifecycle import UNSTOPPABLE, AttemptEnd, EndKind
from yamlsched.schedule.job import Job
from yamlsched.worker import clock, forking
from yamlsched.worker.attempt import Attempt, Kind, Workload
from yamlsched.worker.forking import Pipe, PipeWriter
from yamlsched.worker.local import bootstrap
from yamlsched.worker.local.protocol import (
    DUMP_SIGNAL,
    MAX_TASKS,
    NOT_STARTED,
    RESUME,
    STARTED,
    STOP,
    TASKS,
    Channel,
    Frames,
    Memory,
    Success,
    Task,
    frame,
)
from yamlsched.worker.output import AttemptOutput

SLOW_SECONDS = 0.2  # after which attempts that wait behind a running one go to another child
START_TIMEOUT_SECONDS = 3.0  # for a child to start what it was handed: then others get it
BLOCKED_SECONDS = 3.0  # for which one step of a coroutine may take
BLOCKED_FOR = f"blocked the event loop for {BLOCKED_SECONDS:.0f}s"
IMPORT_SECONDS = 60.0  # for which the import of a handler may take
MAX_UNWATCHED_SECONDS = 0.5  # between two looks at a child: in longer ones this host stood still
DUMP_SECONDS = 0.5  # for a child to write where it is, before it is killed
HUNG = "its process hung, and was killed, before it could report how the handler ended"
KILL_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
# of one child's messages in a row, so that a child that writes endlessly does not block the others
MAX_READS = 16
MAX_READ_BYTES = 1 << 16  # what a pipe holds; a buffer of a megabyte takes longer than most reads


class ChildHandle:
    """One child, which leads a process group of its own. Instants are those of ``clock.now``."""

    def __init__(self, workload: Workload, kind: Kind) -> None:
        """Fork. Raises EnvironmentFailed when the system refuses."""
        self.kind, self.memory = kind, Memory()
        self.is_loop = kind is Kind.COROUTINE  # executes as many as it is handed
        self.capacity = MAX_TASKS if self.is_loop else 1  # attempts that execute at once
        sys.stdout.flush()
        sys.stderr.flush()

        def run(parent: int, pipes: list[Pipe]) -> None:
            (commands, _), (_, results), (_, output), (_, stack) = pipes
            channel = Channel(commands, results, output, stack, self.memory)
            bootstrap.run(parent, channel, workload, kind)

        self.pid, pipes = forking.fork("child", 4, run)
        (command_read, commands), *readable = pipes
        os.close(command_read)
        for descriptor, written in readable:
            os.close(written)
            os.set_blocking(descriptor, False)
        self.results, output, self.stack = [descriptor for descriptor, _ in readable]
        self.loop = asyncio.get_running_loop()
        self.commands, self.output, self.frames = PipeWriter(commands), output, Frames()
        self.stray = AttemptOutput(None)  # what it prints while it executes nothing
        self.assigned: dict[int, Attempt] = {}  # by index
        self.free = deque(range(MAX_TASKS))  # indexes
        self.sent_count = 0  # tasks so far, without those that were withdrawn
        self.slow_count = 0  # attempts that take long: nothing starts soon in their places
        self.is_retired = False  # gets no more tasks
        self.is_closed = False  # its pipe of commands is closed, so that it exits
        self.was_stopped = False  # what its handler has forked is killed with it
        self.idle_since = clock.now()
        self.active_at = 0.0  # when it was last known to work, or to have nothing to do
        self.kill_at: float | None = None
        self.step = 0  # the last one of its event loop that was seen
        self.seen_at = self.step_seconds = 0.0  # then, and for how long it has been the same
        # the attempt that was the reason for killing it, and what it did
        self.killed_for: tuple[Attempt | None, str] | None = None

    @property
    def load(self) -> int:
        """How many permits its attempts need."""
        return min(self.capacity, len(self.assigned))

    # -- attempts ----------------------------------------------------------------------------------

    def executing(self) -> list[tuple[int, Attempt]]:
        """Return the attempts whose handlers are executing now, by index."""
        return [item for item in self.assigned.items() if self.memory.state(item[0]) == STARTED]

    def current(self) -> Attempt | None:
        """Return the attempt whose code is executing now, or was when the child died. Those of a
        child that executes one after the other: which has started last.
        """
        if self.is_loop:
            return self.assigned.get(self.memory.shared.executing)
        state = self.memory.state
        started = [each for index, each in self.assigned.items() if state(index) != NOT_STARTED]
        return started[-1] if started else None

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Hand over ``attempts``, no more than ``free`` indexes."""
        tasks: list[Task] = []
        if not self.assigned:
            self.active_at = clock.now()
        for attempt in attempts:
            index, run = self.free.popleft(), attempt.run
            self.memory.clear(index)
            self.assigned[index] = attempt
            timeout = attempt.job.timeout.total_seconds()
            tasks.append((index, _target(attempt.job), run.payload, timeout, tuple(run)))
        self.sent_count += len(tasks)
        self.commands.write(frame(TASKS, tasks))

    def resume(self) -> None:
        """Let it continue: its message was handled."""
        self.commands.write(frame(RESUME))

    def receive(self) -> Iterator[tuple[int, Any]]:
        """Yield what it reports: a kind, see ``protocol.OUTPUT``, and its content.

        Raises ValueError or TypeError for what no child sends: its handler wrote into the pipe.
        """
        for _ in range(MAX_READS):
            try:
                piece = os.read(self.results, MAX_READ_BYTES)
            except BlockingIOError:
                return
            if not piece:
                self.loop.remove_reader(self.results)
                return
            self.active_at = clock.now()
            yield from self.frames.feed(piece)

    def succeed(self, successes: list[Success]) -> list[Attempt]:
        """Return the attempts at these indexes, which it no longer holds, and set what they took
        and used.
        """
        attempts = []
        for index, took, usage in successes:
            if (attempt := self.take(index)) is not None:
                attempt.took, attempt.usage = took, usage
                attempts.append(attempt)
        return attempts

    def take(self, index: int) -> Attempt | None:
        """Return the attempt at ``index``, which is free now; None: it was withdrawn."""
        attempt = self.assigned.pop(index, None)
        if attempt is not None and self.memory.progress.is_used:
            self._read_progress(index, attempt)
        self.free.append(index)
        if not self.is_loop:
            self.slow_count = 0
        if not self.assigned:
            self.idle_since = clock.now()
        return attempt

    def read_progress(self) -> None:
        """Set the progress of its attempts, as their handlers have reported it."""
        if self.memory.progress.is_used:
            for index, attempt in self.assigned.items():
                self._read_progress(index, attempt)

    def _read_progress(self, index: int, attempt: Attempt) -> None:
        attempt.progress = self.memory.progress.read(index, attempt.run) or attempt.progress

    # -- what it prints ----------------------------------------------------------------------------

    def read_output(self) -> bool:
        """Read from its pipe and pass that on; return whether there was something.

        It belongs to the attempt that executes, or has executed last and is not handled yet.
        Coroutines print there only what belongs to none of them.
        """
        with self.memory.reading():
            try:
                content = os.read(self.output, MAX_READ_BYTES)
            except BlockingIOError:
                return False
            if not content:
                self.loop.remove_reader(self.output)
                return False
            self.memory.shared.has_printed = True
            source = None if self.is_loop else self.current()
        (self.stray if source is None else self.output_of(source)).add(content)
        return True

    def read_rest(self) -> None:
        """Read all that its pipe holds; it prints nothing meanwhile."""
        for _ in range(MAX_READS):
            if not self.read_output():
                break

    def output_of(self, attempt: Attempt) -> AttemptOutput:
        """Return what ``attempt`` has printed, and goes on printing to."""
        if attempt.output is None:
            attempt.output = AttemptOutput(attempt.run)
        return attempt.output

    # -- watching and stopping ---------------------------------------------------------------------

    def check(self, now: float) -> list[Attempt]:
        """Read progress, stop what exceeds its timeout, and kill what hangs. Return attempts that
        it has not started, for others to start.
        """
        self.read_progress()
        if self.kill_at is not None:
            self.kill_if_due(now)
            return []
        executing, shared = self.executing(), self.memory.shared
        if executing:
            self.active_at = now
        elif self.assigned and now - self.active_at > START_TIMEOUT_SECONDS:
            unstarted = self.retire()
            if not self.executing():  # it hangs between two attempts
                self.kill_for(self.current(), HUNG, KILL_GRACE_SECONDS)
            return unstarted
        late, slow_count = [], 0
        for index, attempt in executing:
            if shared.is_import and shared.executing == index:
                continue  # its handler has not been called
            attempt.seen_at = attempt.seen_at or now
            slow_count += now - attempt.seen_at > SLOW_SECONDS
            if now - attempt.seen_at > attempt.job.timeout.total_seconds():
                late.append(index)
        is_new, self.slow_count = slow_count > self.slow_count, slow_count
        unstarted = self.withdraw() if is_new and not self.is_loop else []
        for index in late:
            unstarted += self._time_out(index)
        if self.is_loop and shared.is_ready:
            if self._is_blocked(now):
                os.kill(self.pid, DUMP_SIGNAL)
                self.kill_for(self.current(), BLOCKED_FOR, DUMP_SECONDS)
            self._kill_unstoppable(now)
        return unstarted

    def _is_blocked(self, now: float) -> bool:
        """Return whether its event loop has been in the same step for too long."""
        shared, elapsed = self.memory.shared, min(now - self.seen_at, MAX_UNWATCHED_SECONDS)
        self.step_seconds = self.step_seconds + elapsed if shared.step == self.step else 0.0
        self.step, self.seen_at = shared.step, now
        return self.step_seconds >= (IMPORT_SECONDS if shared.is_import else BLOCKED_SECONDS)

    def read_stack(self) -> str:
        """Return what it wrote when it was sent ``DUMP_SIGNAL``."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.stack, MAX_READ_BYTES).decode("utf-8", "replace")
        return ""

    def _time_out(self, index: int) -> list[Attempt]:
        attempt = self.assigned[index]
        if attempt.kill_at is not None:
            return []  # it is being stopped
        how = "stopped" if self.is_loop else "killed"
        why = f"still running after {durations.show(attempt.job.timeout)}, {how}"
        attempt.stopped = attempt.stopped or AttemptEnd(EndKind.RAISED, why, "Timeout")
        return self.stop([index], None)

    def _kill_unstoppable(self, now: float) -> None:
        """Kill it if a coroutine that was stopped has not ended in time."""
        for _, attempt in self.executing() if self.killed_for is None else ():
            if attempt.kill_at is not None and now >= attempt.kill_at:
                if attempt.stopped is not None and attempt.stopped.kind is EndKind.RAISED:
                    why = (
                        f"{attempt.stopped.error}; it did not end, and was killed with its process"
                    )
                    attempt.stopped = attempt.stopped._replace(error=why, error_type=UNSTOPPABLE)
                self.kill_for(attempt, "did not end when it was stopped")
                return

    def kill_for(self, attempt: Attempt | None, why: str, seconds: float = 0.0) -> None:
        """Kill it after ``seconds`` because of ``attempt``, if that is known; its exit is read
        later.
        """
        if self.killed_for is None:
            self.killed_for = attempt, why
            self.is_retired = True
            self.kill_by(clock.now() + seconds)
            self.kill_if_due(clock.now())

    def withdraw(self, wanted: Iterable[int] | None = None) -> list[Attempt]:
        """Take back the attempts that it has not started, of all or of the indexes ``wanted``."""
        withdrawn = []
        for index in list(self.assigned if wanted is None else wanted):
            if self.memory.withdraw(index):  # it is free again once the child has met it
                withdrawn.append(self.assigned.pop(index))
        self.sent_count -= len(withdrawn)
        return withdrawn

    def retire(self) -> list[Attempt]:
        """Let it start nothing more; return the attempts that it has not started."""
        self.is_retired = True
        return self.withdraw()

    def stop(self, indexes: list[int], grace: float | None) -> list[Attempt]:
        """Stop the attempts at ``indexes``, and kill what has not ended ``grace`` seconds later.

        Returns attempts that it has not started. An attempt that executes alone gets SIGTERM:
        nothing may follow in its process, so that nothing else is hit.
        """
        withdrawn = self.withdraw(indexes) if self.is_loop else self.retire()
        started = [index for index in indexes if self.memory.state(index) == STARTED]
        if self.is_loop:
            kill_at = clock.now() + (KILL_GRACE_SECONDS if grace is None else grace)
            for index in started:
                attempt = self.assigned[index]
                attempt.kill_at = min(kill_at, attempt.kill_at or kill_at)
            self.commands.write(frame(STOP, started))
            self._kill_unstoppable(clock.now())
        elif started:  # else it had not started, or its report is on its way
            self._terminate(self.assigned[started[0]], grace)
        return withdrawn

    def _terminate(self, attempt: Attempt, grace: float | None) -> None:
        self.was_stopped = True
        if grace is None:
            grace = attempt.kill_after if attempt.is_command else KILL_GRACE_SECONDS
        if grace <= 0:
            self.kill()
        elif self.kill_at is None:
            self.memory.shared.is_stop_requested = (
                True  # a SIGTERM that is not announced is ignored
            )
            if attempt.is_command:
                self.signal_program(signal.SIGTERM)
            else:
                self._signal(signal.SIGTERM)
        self.kill_by(clock.now() + grace)

    def close_input(self) -> None:
        """Let it exit, now that it has nothing to do: it does when its pipe closes."""
        self.is_retired = self.is_closed = True
        self.commands.close()
        self.kill_by(clock.now() + KILL_GRACE_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        """Signal it and what it has started."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)
                return

    def signal_program(self, number: int) -> None:
        """Signal the process group of the command that it executes, if any."""
        if group := self.memory.shared.group:
            signal_group(group, number)

    def kill(self) -> None:
        """Kill it, and all that it has started."""
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def kill_group(self) -> None:
        """Kill what it had started, and would outlive it; it has ended, and its id may be that of
        another process.
        """
        self.signal_program(signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill_by(self, instant: float) -> None:
        """Have it killed at ``instant``, or at an earlier one that was set before."""
        self.kill_at = instant if self.kill_at is None else min(self.kill_at, instant)

    def kill_if_due(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at:
            self.kill()
            self.kill_at = now + KILL_GRACE_SECONDS

    def close(self) -> None:
        """Close its pipes; it has ended."""
        self.stray.take(is_kept=False)
        if not self.is_closed:
            self.commands.close()
        for descriptor in (self.results, self.output, self.stack):
            self.loop.remove_reader(descriptor)
            os.close(descriptor)


def _target(job: Job) -> str | tuple[Any, ...]:
    """Return what a child executes for a run of ``job``: a program, or the handler at a path."""
    return tuple(Program.from_job(job)) if job.command else job.handler or ""
