"""The children of a worker: forked when there is work, handed runs, watched, stopped, buried."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from yamlsched import durations
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs import MAX_STACK_CHARS, End, Ending, EnqueueBatch
from yamlsched.worker import clock
from yamlsched.worker.executors.processes.child_handle import Attempt, ChildHandle, cause, fork
from yamlsched.worker.executors.processes.protocol import DONE, ENDED, NOT_STARTED, WITHDRAWN, Memory, Report
from yamlsched.worker.executors.processes.runner import MAX_ERROR_CHARS
from yamlsched.worker.stderr import NonBlockingStderr

MAX_MESSAGE_SECONDS = 0.005  # of expected work that one message may hold
MAX_MESSAGE_RUNS = 200  # runs
MAX_MESSAGE_BYTES = 1 << 18  # of payload
SOON = 0.08  # seconds of expected work that may be claimed ahead
QUICK = 0.04  # seconds: behind a run that takes less, another may wait in the same child
MAX_RUNS_PER_CHILD = 50_000  # runs, so that what handlers leak does not pile up
KILL_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
STUCK_AFTER = 0.2  # seconds after which runs that wait behind a running one go to another child
FAREWELL = 2.0  # seconds for which children that have nothing to do are given to end
DIED = "WorkerDied"  # the error_type of an attempt whose process died
SPOILT = Ending(End.RAISED, "the handler wrote to a file descriptor that it did not open", DIED)
MAX_FAILED_FORKS = 6  # children in a row that died before they were ready for runs: then no more are started
MAX_FAILED_STARTS = 3  # children that died with a run in their hands before they started it: then it costs an attempt
READS_AT_ONCE = 16  # of one child's reports, so that a child that writes without end does not hold up the others
START_WITHIN = 3.0  # seconds for a child to start what it was handed: then others get it


class Pool:
    """The children. ``on_end(held, ending, enqueued)`` hears of each attempt's end, ``on_success(ends)`` of those of
    which there is nothing to tell but how many seconds they took, ``on_back(runs)`` of runs that were handed out and
    not begun. ``lines`` is where children's output goes, if that can be full.
    """

    def __init__(
        self,
        start: Callable[[int, int, int, int, Memory], Any],
        on_end: Callable[[Attempt, Ending, list[Any]], None],
        on_success: Callable[[list[tuple[Attempt, float]]], None],
        on_back: Callable[[Iterable[Attempt]], None],
        lines: NonBlockingStderr | None = None,
    ) -> None:
        self._start, self._on_end, self._on_success, self._on_back, self._lines = (
            start,
            on_end,
            on_success,
            on_back,
            lines,
        )
        self._loop = asyncio.get_running_loop()
        self.children: dict[int, ChildHandle] = {}
        self._seconds: dict[str, float] = {}  # expected, of a handler; by job
        self._typical: float | None = None  # of late, whatever the job
        self._cannot_fork = False  # the latest attempt failed
        self._failed_forks = 0
        self._failure = ""  # of the latest of these

    # -- handing out ---------------------------------------------------------------------------------------------

    def dispatch(self, waiting: deque[Attempt], slots: int) -> None:
        """Hand ``waiting`` to children, of which no more than ``slots`` may be busy."""
        while waiting:
            busy = [child for child in self.children.values() if child.assigned]
            child = self._child_for(waiting[0], busy, slots)
            if child is None:
                return
            child.send(self._message(waiting, max(1, len(waiting) // max(1, slots - len(busy)))))
            child.is_ending = child.is_ending or child.handed >= MAX_RUNS_PER_CHILD

    def _message(self, waiting: deque[Attempt], most: int) -> list[Attempt]:
        """Take from ``waiting`` what is handed over at once: up to ``most`` runs of a few milliseconds in all."""
        message: list[Attempt] = []
        size, job = 0, None
        while waiting and size < MAX_MESSAGE_BYTES:
            held = waiting[0]
            if held.job is not job:
                job, most = held.job, min(most, self.quota(held))
            if message and (len(message) >= most or held.failed_starts):
                break
            message.append(waiting.popleft())
            size += len(held.run.payload)
            if held.failed_starts:
                break  # by itself, so that its child's death is due to nothing else
        return message

    def _child_for(self, held: Attempt, busy: list[ChildHandle], slots: int) -> ChildHandle | None:
        if len(busy) < slots:
            idle = [c for c in self.children.values() if not c.assigned and not c.is_ending]
            return idle[-1] if idle else self._fork()
        if not self._is_quick(held):
            return None
        quota = self.quota(held)
        able = [c for c in busy if c.has_read and not c.is_ending and not c.is_stuck and len(c.assigned) <= quota]
        best = min(able, key=lambda c: len(c.assigned), default=None)
        return best if best is not None and all(map(self._is_quick, best.assigned.values())) else None

    def _is_quick(self, held: Attempt) -> bool:
        """Say whether another run may wait behind this one, so that its child need not wait for us."""
        return not held.failed_starts and self._seconds.get(held.job.name, QUICK) < QUICK

    def quota(self, held: Attempt) -> int:
        """Return how many runs of this kind make one message: 1 while nothing is known of the job."""
        seconds = self._seconds.get(held.job.name)
        return 1 if seconds is None else max(1, min(MAX_MESSAGE_RUNS, int(MAX_MESSAGE_SECONDS / max(seconds, 1e-7))))

    def soon(self, slots: int) -> int:
        """Return how many runs ``slots`` children can begin within some tens of milliseconds, those at work included.

        A child whose run takes long begins nothing soon, and one that cannot be forked neither.
        """
        if self._cannot_fork:
            slots = min(slots, len(self.children))
        moving = max(0, slots - sum(1 for child in self.children.values() if child.is_stuck))
        ahead = 1 if self._typical is None else int(SOON / max(self._typical, 1e-7))
        return moving * max(1, min(4 * MAX_MESSAGE_RUNS, ahead))

    def busy(self) -> int:
        """Return how many children hold runs."""
        return sum(1 for child in self.children.values() if child.assigned)

    # -- life and death ------------------------------------------------------------------------------------------

    def _fork(self) -> ChildHandle:
        self._cannot_fork = True
        if self._failed_forks >= MAX_FAILED_FORKS:
            raise EnvironmentFailed(f"child processes die before they are ready for a run: {self._failure}")
        child = fork(self._start)
        self._cannot_fork = False
        self.children[child.pid] = child
        self._loop.add_reader(child.results, self._read, child)
        self._loop.add_reader(child.output.descriptor, self._read_output, child)
        return child

    def reap(self) -> None:
        """Bury the children that have ended (to be called on SIGCHLD)."""
        for pid in list(self.children):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                self._handle_exit(self.children.pop(pid), status)

    def _handle_exit(self, child: ChildHandle, status: int) -> None:
        self._read(child)
        self._read_output(child)
        self._failed_forks = 0 if child.memory.is_ready else self._failed_forks + 1
        self._failure = cause(status, "")
        back, has_started = [], False
        for place, held in child.assigned.items():
            state = child.memory.state(place)
            if state == NOT_STARTED:
                back.append(held)
            elif state == DONE:
                self._end(child, held, Ending(End.RETURNED))
            else:
                has_started = True
                self._end(child, held, held.stopped or Ending(End.RAISED, _how_it_died(child, state, status), DIED))
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)  # what the handler had started, and would outlive it
        child.assigned.clear()
        child.output.drop()
        child.close()
        if child.memory.is_ready and not has_started:
            back = [held for held in back if not self._is_poisonous(child, held, status)]
        self._on_back(back)

    def _is_poisonous(self, child: ChildHandle, held: Attempt, status: int) -> bool:
        """Count the death of a child that had not started ``held``; after a few of them, end the attempt.

        After the first one ``held`` is handed over by itself: only a run that kills its child each time gets this far.
        """
        held.failed_starts += 1
        if held.failed_starts < MAX_FAILED_STARTS or held.stopped is not None:
            return False
        why = f"{MAX_FAILED_STARTS} child processes died before they could start it: {cause(status, '')}"
        self._end(child, held, Ending(End.RAISED, why, DIED))
        return True

    def stop(self, child: ChildHandle, held: Attempt, ending: Ending, grace: float = KILL_GRACE) -> None:
        """Stop the handler of ``held``, which ``child`` is executing: SIGTERM, and SIGKILL ``grace`` seconds later.

        What the child has not begun goes to others first, so that nothing but ``held`` can be hit.
        """
        held.stopped = held.stopped or ending
        child.is_ending = True
        self._on_back(child.withdraw())
        if child.current() is not held:
            return  # it ended this moment: its report is on its way
        kill_at = clock.now() + grace
        if child.kill_at is None:
            child.stop()
        child.kill_at = kill_at if child.kill_at is None else min(child.kill_at, kill_at)

    def kill_all(self, ending: Ending) -> None:
        """Kill every child at once; what their runs have come to is ``ending``."""
        for child in self.children.values():
            for held in child.assigned.values():
                held.stopped = held.stopped or ending
            child.signal(signal.SIGKILL)

    def retire(self, idle_for: float = 0.0) -> None:
        """Give children no more runs: those that have nothing to do, for so many seconds, end at once."""
        oldest = clock.now() - idle_for
        for child in self.children.values():
            if not idle_for or (not child.assigned and child.idle_since <= oldest):
                child.is_ending = True
        self._end_idle()

    def _end_idle(self) -> None:
        for child in self.children.values():
            if child.is_ending and not child.assigned and not child.is_closed:
                child.end()
                child.kill_at = child.kill_at or clock.now() + KILL_GRACE

    async def close(self) -> None:
        """Wait until no child is left; kill those that stay. Nothing of theirs is to be expected any more."""
        self.retire()
        patience = clock.now() + FAREWELL
        while self.children:
            if clock.now() > patience:
                self.kill_all(Ending(End.RELEASED, "stopped because the worker failed"))
            self.reap()
            await asyncio.sleep(0.002)

    # -- watching ------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Find what takes too long. To be called several times a second while there are children."""
        now = clock.now()
        for child in list(self.children.values()):
            if child.kill_at is not None:
                if now >= child.kill_at:
                    child.signal(signal.SIGKILL)
                    child.kill_at = now + KILL_GRACE
                continue
            held = child.current()
            if held is None:
                if child.assigned and now - child.active_at > START_WITHIN:
                    self._replace(child)
                continue
            child.active_at = now
            if held.started_at is None:
                held.started_at = now
            runs_for = now - held.started_at
            if runs_for > held.job.timeout.total_seconds():
                limit = durations.show(held.job.timeout)
                self.stop(child, held, Ending(End.RAISED, f"still running after {limit}, killed", "Timeout"))
            elif runs_for > STUCK_AFTER and not child.is_stuck:
                child.is_stuck = True
                self._on_back(child.withdraw())
        self._end_idle()

    def _replace(self, child: ChildHandle) -> None:
        """Hand what ``child`` has not started to others, and kill it: it hangs between two runs."""
        child.is_ending = True
        self._on_back(child.withdraw())
        if child.current() is None:
            child.is_hung = True
            child.kill_at = clock.now() + KILL_GRACE

    def holding(self) -> list[tuple[ChildHandle, Attempt]]:
        """Return what has been handed out and has not ended."""
        return [(child, held) for child in self.children.values() for held in child.assigned.values()]

    # -- hearing -------------------------------------------------------------------------------------------------

    def _read(self, child: ChildHandle) -> None:
        for _ in range(READS_AT_ONCE):
            try:
                piece = os.read(child.results, 1 << 20)
            except BlockingIOError:
                return
            if not piece:
                self._loop.remove_reader(child.results)
                return
            child.active_at = clock.now()
            try:
                for successes, report in child.frames.feed(piece):
                    self._hear_all(child, successes, report)
            except (ValueError, TypeError, IndexError):
                self._loop.remove_reader(child.results)
                if child.pid in self.children:
                    if held := child.current():
                        held.stopped = held.stopped or SPOILT
                    child.signal(signal.SIGKILL)
                return

    def _hear_all(self, child: ChildHandle, successes: list[tuple[int, float]], report: tuple[Any, ...] | None) -> None:
        if ends := child.succeeded(successes):
            seconds = sum(took for _, took in ends) / len(ends)
            for job in {held.job.name for held, _ in ends}:
                self._learn(job, seconds)
            if not child.output.is_empty and any(held.run is child.output.run for held, _ in ends):
                child.output.drop()
            self._on_success(ends)
        if report is not None:
            self._hear(child, Report(*report))

    def _hear(self, child: ChildHandle, report: Report) -> None:
        held = child.heard(report.place)
        if report.has_output:
            self._read_output(child, held)
            child.go_on()
        if held is None:
            return  # taken back before it was begun
        if report.end == WITHDRAWN:
            self._on_back([held])
            return
        self._learn(held.job.name, report.took - report.import_seconds)  # the next runs need no import
        if held.stopped is None or report.end in (End.RETURNED, End.COMMITTED):
            ending = Ending(
                End(report.end),
                report.error[:MAX_ERROR_CHARS],
                report.error_type[:MAX_ERROR_CHARS],
                report.stack[-MAX_STACK_CHARS:],
                report.result,
                None if report.delay is None else _delay(report.delay),
                took=report.took,
            )
        else:
            ending = held.stopped._replace(stack=report.stack[-MAX_STACK_CHARS:])
        self._end(child, held, ending, [EnqueueBatch(*plain) for plain in report.enqueued or []])

    def _learn(self, job: str, took: float) -> None:
        self._seconds[job] = _moved(self._seconds.get(job), took)
        self._typical = _moved(self._typical, took)

    def _end(self, child: ChildHandle, held: Attempt, ending: Ending, enqueued: list[Any] | None = None) -> None:
        if child.output.run is held.run:
            if ending.end in (End.RETURNED, End.COMMITTED):
                child.output.drop()
            else:
                ending = ending._replace(output=child.output.take())
        self._on_end(held, ending, enqueued or [])

    def _read_output(self, child: ChildHandle, held: Attempt | None = None) -> None:
        of = held or child.latest()
        child.output.read(None if of is None else of.run)
        descriptor = child.output.descriptor
        if child.output.is_closed:
            self._loop.remove_reader(descriptor)
        elif self._lines is not None and self._lines.is_full and child.pid in self.children:
            # nobody reads our stderr as quickly as this prints: it waits, and nothing else does
            self._loop.remove_reader(descriptor)
            self._lines.when_room(lambda: self._resume_output(child))

    def _resume_output(self, child: ChildHandle) -> None:
        if self.children.get(child.pid) is child and not child.output.is_closed:
            self._loop.add_reader(child.output.descriptor, self._read_output, child)


def _how_it_died(child: ChildHandle, state: int, status: int) -> str:
    if state != ENDED:
        return cause(status)
    how = "hung, and was killed," if child.is_hung else f"died ({cause(status, '')})"
    return f"its process {how} before it could report how the handler ended"


def _moved(known: float | None, took: float) -> float:
    """Return the new expectation: what is slow because it is new (imports) is soon forgotten."""
    if known is None:
        return took
    return known + (0.5 if took < known else 0.2) * (took - known)


def _delay(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return timedelta.max
