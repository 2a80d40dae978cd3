"""The children of a worker: forked when there is work, handed runs, watched, killed, buried."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from yamlsched import durations
from yamlsched.definitions.job import Job
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs import Claimed, End, Ending
from yamlsched.worker import clock
from yamlsched.worker.output import Output
from yamlsched.worker.wire import DONE, GO_ON, NOT_BEGUN, PLACES, WITHDRAWN, Frames, Memory, Report, Task, frame

MESSAGE_SECONDS = 0.005  # of expected work that one message may hold
LONGEST_MESSAGE = 200  # runs
MESSAGE_BYTES = 1 << 18  # of payload
RECYCLE_AFTER = 10_000  # runs, so that what handlers leak does not pile up
KILL_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
STUCK_AFTER = 0.2  # seconds after which runs that wait behind a running one go to another child


@dataclass(slots=True, eq=False)
class Held:
    """A run that this worker holds, from its claim to its outcome."""

    run: Claimed
    job: Job
    lease_ends: float  # on the clock that counts suspend, counted from before the claim was sent
    renewed: float
    begun: float | None = None
    stopped: Ending | None = None  # why its child is being killed
    is_lost: bool = False  # somebody else's by now: whatever comes of it is discarded


@dataclass(slots=True, eq=False)
class Child:
    """The parent's side of one child."""

    pid: int
    commands: int
    results: int
    memory: Memory
    output: Output
    frames: Frames = field(default_factory=Frames)
    assigned: dict[int, Held] = field(default_factory=dict)
    unwritten: bytearray = field(default_factory=bytearray)
    next_index: int = 0
    handed: int = 0
    kill_at: float | None = None
    killed_for: Held | None = None
    is_ending: bool = False  # gets no more runs

    def current(self) -> Held | None:
        """The run whose handler is executing now."""
        index = self.memory.running()
        return None if index is None else self.assigned.get(index)


class Pool:
    """At most ``most`` children. ``on_end(held, ending, enqueued)`` hears of each attempt's end."""

    def __init__(
        self,
        start: Callable[[int, int, int, Memory], None],
        on_end: Callable[[Held, Ending, list[object]], None],
        on_back: Callable[[Iterable[Held]], None],
    ) -> None:
        self._start, self._on_end, self._on_back = start, on_end, on_back
        self._loop = asyncio.get_running_loop()
        self.children: dict[int, Child] = {}
        self._seconds: dict[str, float] = {}  # expected, of a handler; by job
        self._deaths_without_work = 0

    # -- handing out ---------------------------------------------------------------------------------------------

    def dispatch(self, waiting: deque[Held], slots: int) -> None:
        """Hand ``waiting`` to children, of which there may be ``slots``."""
        while waiting:
            child = self._free_child(waiting[0], slots)
            if child is None:
                return
            idle = sum(1 for c in self.children.values() if not c.assigned) + max(0, slots - len(self.children))
            most = min(self.quota(waiting[0]), max(1, len(waiting) // max(1, idle)))
            message, size = [waiting.popleft()], 0
            while waiting and len(message) < most and size < MESSAGE_BYTES:
                most = min(most, self.quota(waiting[0]))
                if len(message) >= most:
                    break
                message.append(waiting.popleft())
                size += len(message[-1].run.payload)
            self._send(child, message)

    def quota(self, held: Held) -> int:
        """Return how many runs of this kind make one message: 1 while nothing is known of the job."""
        seconds = self._seconds.get(held.job.name)
        return 1 if seconds is None else max(1, min(LONGEST_MESSAGE, int(MESSAGE_SECONDS / max(seconds, 1e-7))))

    def soon(self, slots: int) -> int:
        """Return how many runs ``slots`` children can begin within some tens of milliseconds."""
        if not self._seconds:
            return slots
        slowest = max(self._seconds.values())
        return slots * max(1, min(4 * LONGEST_MESSAGE, int(0.04 / max(slowest, 1e-7))))

    def _free_child(self, held: Held, slots: int) -> Child | None:
        usable = [c for c in self.children.values() if not c.is_ending]
        best = min(usable, key=lambda c: len(c.assigned), default=None)
        if best is not None and not best.assigned:
            return best
        if len(usable) < slots:
            return self._fork()
        quota = self.quota(held)
        if best is not None and quota > 1 and len(best.assigned) <= quota and self._is_quick(best):
            return best
        return None

    def _is_quick(self, child: Child) -> bool:
        return all(self.quota(held) > 1 for held in child.assigned.values())

    def _send(self, child: Child, message: list[Held]) -> None:
        tasks = []
        for held in message:
            index = child.next_index
            while index in child.assigned:
                index = (index + 1) % PLACES
            child.next_index = (index + 1) % PLACES
            child.memory.clear(index)
            child.assigned[index] = held
            tasks.append(tuple(_task(index, held)))
        child.handed += len(message)
        if child.handed >= RECYCLE_AFTER:
            child.is_ending = True
        self._write(child, frame(tasks))

    def _write(self, child: Child, content: bytes) -> None:
        waiting = bool(child.unwritten)
        child.unwritten += content
        if not waiting:
            self._flush(child)

    def _flush(self, child: Child) -> None:
        try:
            while child.unwritten:
                del child.unwritten[: os.write(child.commands, child.unwritten)]
        except BlockingIOError:
            self._loop.add_writer(child.commands, self._flush, child)
            return
        except OSError:
            child.unwritten.clear()  # it has died: its end is reaped, and its runs are known
        self._loop.remove_writer(child.commands)

    # -- life and death ------------------------------------------------------------------------------------------

    def _fork(self) -> Child:
        command_read, command_write = os.pipe()
        result_read, result_write = os.pipe()
        output_read, output_write = os.pipe()
        memory = Memory()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for descriptor in (command_write, result_read, output_read):
                os.close(descriptor)
            for other in self.children.values():
                for descriptor in (other.commands, other.results, other.output.descriptor):
                    os.close(descriptor)
            self._start(command_read, result_write, output_write, memory)
            os._exit(0)
        for descriptor in (command_read, result_write, output_write):
            os.close(descriptor)
        for descriptor in (command_write, result_read, output_read):
            os.set_blocking(descriptor, False)
        child = Child(pid, command_write, result_read, memory, Output(output_read))
        self.children[pid] = child
        self._loop.add_reader(result_read, self._read, child)
        self._loop.add_reader(output_read, self._read_output, child)
        return child

    def reap(self) -> None:
        """Bury the children that have ended (to be called on SIGCHLD)."""
        for pid in list(self.children):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                self._bury(self.children.pop(pid), status)

    def _bury(self, child: Child, status: int) -> None:
        self._read(child)
        self._read_output(child)
        for descriptor in (child.commands, child.results, child.output.descriptor):
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            os.close(descriptor)
        back, had_work = [], bool(child.assigned)
        begun = False
        for index, held in sorted(child.assigned.items()):
            state = child.memory.state(index)
            if state == NOT_BEGUN:
                back.append(held)
            elif state == DONE:
                self._end(child, held, Ending(End.RETURNED))
                begun = True
            else:
                self._end(child, held, held.stopped or Ending(End.RAISED, cause(status), "WorkerDied"))
                begun = True
        child.assigned.clear()
        child.output.close()
        self._on_back(back)
        self._deaths_without_work = self._deaths_without_work + 1 if had_work and not begun else 0
        if self._deaths_without_work > 5:
            raise EnvironmentFailed(f"children die before they begin a run: {cause(status)}")

    def kill(self, child: Child, held: Held, ending: Ending) -> None:
        """Stop the handler of ``held``, which ``child`` is executing: SIGTERM, and SIGKILL if that does not help."""
        if held.stopped is None:
            held.stopped = ending
        if child.kill_at is None:
            child.is_ending = True
            child.kill_at, child.killed_for = clock.now() + KILL_GRACE, held
            _signal(child.pid, signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill every child at once."""
        for pid in self.children:
            _signal(pid, signal.SIGKILL)

    def retire(self) -> None:
        """Let children that have nothing to do end; the others when they are through."""
        for child in self.children.values():
            child.is_ending = True
        self._end_idle()

    def _end_idle(self) -> None:
        for child in self.children.values():
            if child.is_ending and not child.assigned and child.kill_at is None:
                child.kill_at = clock.now() + KILL_GRACE  # it ends by itself when its pipe closes
                self._loop.remove_writer(child.commands)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, child.commands)
                os.close(null)

    # -- watching ------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Find what takes too long. To be called several times a second while children work."""
        now = clock.now()
        for child in list(self.children.values()):
            if child.kill_at is not None:
                if now >= child.kill_at:
                    _signal(child.pid, signal.SIGKILL)
                    child.kill_at = now + KILL_GRACE
                continue
            held = child.current()
            if held is None:
                continue
            if held.begun is None:
                held.begun = now
            runs_for = now - held.begun
            if runs_for > held.job.timeout.total_seconds():
                limit = durations.show(held.job.timeout)
                self.kill(child, held, Ending(End.RAISED, f"still running after {limit}, killed", "Timeout"))
            if runs_for > STUCK_AFTER and len(child.assigned) > 1:
                self._on_back(self.take_back(child))
        self._end_idle()

    def take_back(self, child: Child) -> list[Held]:
        """Take from ``child`` the runs that it has not begun."""
        back = []
        for index, held in list(child.assigned.items()):
            if child.memory.take_back(index):
                del child.assigned[index]
                back.append(held)
        return back

    def holding(self) -> list[tuple[Child, int, Held]]:
        """Return what has been handed out and has not ended."""
        return [(child, i, held) for child in self.children.values() for i, held in child.assigned.items()]

    # -- hearing -------------------------------------------------------------------------------------------------

    def _read(self, child: Child) -> None:
        while True:
            try:
                piece = os.read(child.results, 1 << 20)
            except BlockingIOError:
                return
            if not piece:
                self._loop.remove_reader(child.results)
                return
            for content in child.frames.feed(piece):
                for report in content:
                    self._hear(child, Report(*report))

    def _hear(self, child: Child, report: Report) -> None:
        held = child.assigned.pop(report.place, None)
        child.memory.clear(report.place)
        if report.has_output:
            self._read_output(child, held)
            self._write(child, frame(GO_ON))
        if held is None:
            return  # taken back before it was begun
        if report.end == WITHDRAWN:
            self._on_back([held])
            return
        seconds = self._seconds.get(held.job.name)
        self._seconds[held.job.name] = report.took if seconds is None else seconds + 0.2 * (report.took - seconds)
        ending = held.stopped or Ending(
            End(report.end),
            error=report.error,
            error_type=report.error_type,
            stack=report.stack,
            result=report.result,
            delay=None if report.delay is None else _seconds(report.delay),
            took=report.took,
        )
        if report.end in (End.RETURNED, End.COMMITTED) and held.stopped is not None:
            # it came through in the moment in which it was to be killed
            ending = Ending(End(report.end), result=report.result, took=report.took)
        self._end(child, held, ending, report.enqueued)

    def _end(self, child: Child, held: Held, ending: Ending, enqueued: list[object] | None = None) -> None:
        output = child.output.take() if ending.end not in (End.RETURNED, End.COMMITTED) else child.output.drop()
        self._on_end(held, replace_output(ending, output), enqueued or [])

    def _read_output(self, child: Child, held: Held | None = None) -> None:
        of = held or child.current()
        child.output.read(None if of is None else of.run)
        if child.output.is_closed:
            self._loop.remove_reader(child.output.descriptor)


def replace_output(ending: Ending, output: str) -> Ending:
    """Return ``ending`` with what its handler printed."""
    from dataclasses import replace

    return replace(ending, output=output) if output else ending


def _seconds(value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        return timedelta.max


def _task(index: int, held: Held) -> Task:
    run = held.run
    return Task(
        place=index,
        handler=(held.job.on_dead or "") if run.dead_run_id is not None else held.job.handler,
        run_id=run.id,
        job_type=run.job_type,
        key=run.key,
        scheduled_for=None if run.scheduled_for is None else run.scheduled_for.isoformat(),
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        payload=run.payload,
        is_catchup=run.is_catchup,
        locked_by=run.locked_by,
        dead_run_id=run.dead_run_id,
    )


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal the child and what it has started: it leads a process group of its own."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
        return


def cause(status: int) -> str:
    """Return in words how a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number} ({name}){hint}"
    return f"the process exited with status {os.waitstatus_to_exitcode(status)} in the middle of the run"
