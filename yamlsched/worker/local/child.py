"""The parent's side of one child of the pool of processes: the attempts that it holds, and how they
are stopped.

A child does not wait until its output has been read. At the end of an attempt that has printed
something, it writes a mark into the pipe: what precedes it was printed by that attempt. The parent
counts in the shared memory when it starts and ends to read, and when it has read something else
than marks. This is how the child knows of an attempt that has printed nothing, which most do, and
needs no mark.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from yamlsched.handler.programs import Program, signal_group
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.local import bootstrap, protocol
from yamlsched.worker.local.child_pool import KILL_GRACE_SECONDS, ChildProcess, Environment
from yamlsched.worker.local.protocol import (
    INDEX,
    MAX_TASKS,
    Channel,
    Marks,
    Memory,
    Success,
    Task,
    TaskEnd,
)


class Sections:
    """What was read and is not passed on yet: the output of attempts that have ended, and what
    follows.
    """

    def __init__(self, marks: Marks) -> None:
        self._token = marks.token
        self._ended: deque[tuple[int, bytes]] = deque()  # by the index of the task
        self._rest = b""
        self._source: Attempt | None = None  # of the rest

    @property
    def has_ended(self) -> bool:
        """Whether there is output of attempts whose end has not been handled: all else waits for
        that.
        """
        return bool(self._ended)

    def feed(self, content: bytes, source: Attempt | None) -> bool:
        """Add ``content``, and return whether it is more than marks. What follows the last mark is
        of ``source``.
        """
        first, *others = content.split(self._token)
        self._rest += first
        is_printed = bool(first)
        for other in others:
            if len(other) >= INDEX.size:
                self._ended.append((INDEX.unpack_from(other)[0], self._rest))
                self._rest = other[INDEX.size :]
                is_printed = is_printed or bool(self._rest)
        self._source = source
        return is_printed

    def take_ended(self, index: int) -> bytes | None:
        """Return what was read of the output of the task at ``index``, which has ended; None: its
        mark was not read.
        """
        while self._ended:
            ended, content = self._ended.popleft()
            if ended == index:
                return content
        return None

    def take_all_ended(self) -> list[tuple[int, bytes]]:
        """Return all output of tasks that have ended, by index."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def take_rest(self) -> tuple[Attempt | None, bytes]:
        """Return what follows the last mark, and by which attempt it was printed."""
        rest, self._rest = self._rest, b""
        return self._source, rest


MAX_OUTPUT_READS = 16  # in a row


class ChildHandle(ChildProcess):
    """One child of the pool of processes: the attempts that it holds, and its memory."""

    def __init__(self, environment: Environment, is_for_commands: bool) -> None:
        self.memory = memory = Memory()
        self.sections = Sections(memory.marks)

        def run(parent: int, commands: int, results: int, output: int) -> None:
            bootstrap.run(parent, Channel(commands, results, output, memory), environment)

        super().__init__("child", run)
        self.is_for_commands = is_for_commands  # or for handlers: never both
        self.was_stopped = False  # what its handler has forked is killed with it
        self.assigned: dict[int, Attempt] = {}  # by index
        self.withdrawn: set[int] = set()  # indexes of withdrawn tasks that it has not reached yet
        self._next_index = 0
        # its attempt takes long: what would wait behind it goes to another child
        self.is_slow = False
        self.is_hung = False  # it starts nothing of what it was handed, and is killed
        self.active_at = 0.0  # when it was last known to work, or to have nothing to do
        self._observed: Attempt | None = None  # the attempt that was last seen executing
        self._observed_at = 0.0  # when that was seen first

    @property
    def is_idle(self) -> bool:
        return not self.assigned

    def running(self) -> Attempt | None:
        """Return the attempt whose handler is executing now."""
        index = self.memory.running()
        return None if index is None else self.assigned.get(index)

    def seconds_running(self, attempt: Attempt, now: float) -> float:
        """Return for how long ``attempt``, which is executing, has been seen to."""
        if attempt is not self._observed:
            self._observed, self._observed_at = attempt, now
        return now - self._observed_at

    def read_output(self) -> None:
        """Read what there is of its output, and note whose it is.

        What follows the last mark is of the attempt that executes before and after a read. If these
        are two, the next read shows the mark of the first one, which has ended meanwhile. If there
        is none, the second has printed it.
        """
        content, source = b"", None
        self.memory.start_read()
        for _ in range(MAX_OUTPUT_READS):
            before = self.running()
            piece = self.output.read()
            if not piece:
                break
            content += piece
            source = self.running()
            if source is not None and source is before:
                break
        self.memory.end_read(
            bool(content) and self.sections.feed(content, source or self._latest())
        )

    def take_ended_output(self, index: int) -> bytes:
        """Return what was not passed on of the output of the task at ``index``, whose mark is in
        the pipe.
        """
        content = self.sections.take_ended(index)
        if content is None:
            self.read_output()
            content = self.sections.take_ended(index)
        return content or b""

    def _latest(self) -> Attempt | None:
        """Return the attempt that started last: what is printed while none executes is its."""
        for index in reversed(self.assigned):
            if self.memory.state(index) != protocol.NOT_STARTED:
                return self.assigned[index]
        return None

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Hand over ``attempts``, fewer than ``MAX_TASKS``."""
        tasks: list[Task] = []
        if not self.assigned:
            self.active_at = clock.now()
        assigned, withdrawn, index, job = self.assigned, self.withdrawn, self._next_index, None
        for attempt in attempts:
            while index in assigned or index in withdrawn:
                index = (index + 1) % MAX_TASKS
            assigned[index] = attempt
            run = attempt.run
            if attempt.job is not job:  # most messages have the runs of one job
                job = attempt.job
                job_target, timeout = _target(job), job.timeout.total_seconds()
            dead_run_id = run.dead_run_id if run.key else None
            target = job_target if dead_run_id is None else job.on_dead or ""
            tasks.append((index, target, run.payload, dead_run_id, timeout, tuple(run)))
            index = (index + 1) % MAX_TASKS
        self.memory.clear(task[0] for task in tasks)
        self._next_index = index
        self.sent_count += len(tasks)
        self.commands.write(protocol.frame(tasks))

    def resume(self) -> None:
        """Let it continue: what is not to follow its last attempt has been withdrawn."""
        self.commands.write(protocol.frame(protocol.RESUME))

    def withdraw(self) -> list[Attempt]:
        """Take back the attempts that it has not started."""
        withdrawn = []
        for index, attempt in list(self.assigned.items()):
            if self.memory.withdraw(index):
                del self.assigned[index]
                self.withdrawn.add(index)
                withdrawn.append(attempt)
        return withdrawn

    def receive(self) -> Iterator[tuple[list[Success], TaskEnd | None]]:
        """Yield its messages: plain successes, as for ``succeed``, and a report.

        Raises ValueError or TypeError for what no child sends: its handler wrote into the pipe.
        """
        for piece in self.read_results():
            if not piece:
                self.loop.remove_reader(self.results)
                return
            self.active_at = clock.now()
            for successes, report in self.frames.feed(piece):
                yield successes, None if report is None else TaskEnd.decode(report)

    def succeed(self, successes: list[Success]) -> list[Attempt]:
        """Return the attempts at these indexes, which it no longer holds, and set what they took
        and used.
        """
        attempts, pop, has_reports = [], self.assigned.pop, self.memory.progress.is_used
        for index, took, usage in successes:
            if (attempt := pop(index, None)) is not None:
                attempt.took, attempt.usage = took, usage
                if has_reports:
                    self._read_progress(index, attempt)
                attempts.append(attempt)
            else:
                self.withdrawn.discard(index)
        self._finish()
        return attempts

    def end(self, index: int) -> Attempt | None:
        """Return the attempt at ``index``, which it holds no more; None: it was withdrawn."""
        attempt = self.assigned.pop(index, None)
        if attempt is not None and self.memory.progress.is_used:
            self._read_progress(index, attempt)
        self.withdrawn.discard(index)
        self.memory.clear([index])
        self._finish()
        return attempt

    def read_progress(self) -> None:
        """Set the progress of the attempts that it has started, as their handlers have
        reported it.
        """
        if self.memory.progress.is_used:
            for index, attempt in self.assigned.items():
                if self.memory.state(index) != protocol.NOT_STARTED:
                    self._read_progress(index, attempt)

    def _read_progress(self, index: int, attempt: Attempt) -> None:
        attempt.progress = self.memory.progress.read(index, attempt.run) or attempt.progress

    def _finish(self) -> None:
        self.is_slow = False
        if not self.assigned:
            self.idle_since = clock.now()

    def signal_program(self, number: int) -> None:
        """Signal the process group of the command that it executes, if any."""
        if group := self.memory.group:
            signal_group(group, number)

    def kill(self) -> None:
        """Kill it, and all that it has started."""
        self.signal_program(signal.SIGKILL)
        super().kill()

    def stop(self, attempt: Attempt, grace: float) -> list[Attempt]:
        """Stop the handler or the command of ``attempt``: SIGTERM, and SIGKILL ``grace`` seconds
        later.

        Returns the attempts that it has not started, so that nothing but ``attempt`` is hit.
        """
        withdrawn = self.retire()
        # else it had not started, or it ended this moment and its report is on its way
        if self.running() is attempt:
            self.was_stopped = True
            if grace <= 0:
                self.kill()
            elif self.kill_at is None:
                self.memory.request_stop()  # a SIGTERM that is not announced is ignored
                if attempt.is_command:
                    self.signal_program(signal.SIGTERM)
                else:
                    self.signal(signal.SIGTERM)
            self.kill_by(clock.now() + grace)
        return withdrawn

    def retire(self) -> list[Attempt]:
        """Let it start nothing more; return the attempts that it has not started."""
        self.is_retired = True
        return self.withdraw()

    def kill_if_due(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at:
            self.kill()
            self.kill_at = now + KILL_GRACE_SECONDS


def _target(job: Job) -> str | tuple[Any, ...]:
    """Return what a child executes for a run of ``job``: a program, or the handler at a path."""
    return tuple(Program.of(job)) if job.command else job.handler or ""
