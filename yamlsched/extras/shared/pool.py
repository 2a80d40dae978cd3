"""The pool of shared children: each executes many attempts at once, as coroutines of one event
loop.

An attempt costs its neighbours nothing, unless it ends their process: by a crash, by blocking the
event loop, or by not ending when it is stopped. Then each attempt that had started fails.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Iterable

from yamlsched import durations
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.shared import board
from yamlsched.extras.shared.board import Batch
from yamlsched.extras.shared.child import BytePermits, InFlight, SharedChild
from yamlsched.extras.shared.loop import BLOCKED_SECONDS
from yamlsched.runs.lifecycle import BLOCKED, UNSTOPPABLE, WORKER_DIED, AttemptEnd, EndKind
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.executor import (
    Capacity,
    Ended,
    EventQueue,
    ExecutorFailed,
    ReturnedUnstarted,
    Succeeded,
)
from yamlsched.worker.local.child_pool import KILL_GRACE_SECONDS, ChildPool, exit_cause
from yamlsched.worker.local.output import OutputPipe
from yamlsched.worker.local.protocol import TaskEnd
from yamlsched.worker.permits import Permits

__all__ = ["BytePermits", "SharedPool"]

MAX_RUNS_PER_CHILD = 500_000  # to limit what leaking handlers can accumulate
MAX_PER_CHILD = 500  # attempts at once, before another child is forked
CLOSE_TIMEOUT_SECONDS = 5.0  # children may export spans
START_TIMEOUT_SECONDS = 10.0  # for a child to be ready
BLOCKED_MARGIN_SECONDS = 0.5  # after which the parent kills a child whose watchdog has not
AHEAD_SECONDS = 0.1  # for which children have attempts that wait for others to end
MAX_WAIT_SECONDS = 1.0  # for attempts while all others take long: then they are returned
MESSAGE_SIZE = 50  # attempts that are handed over together
RETURNED = AttemptEnd(EndKind.RETURNED)
RATE_WINDOW_SECONDS = 0.1


class Rate:
    """Counts what ends, in windows of a tenth of a second."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._count = 0
        self._last = 0.0  # per second, in the last whole window

    def count(self, ended: int, now: float) -> None:
        self._turn(now)
        self._count += ended

    def per_second(self, now: float) -> float:
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        seconds = now - self._started_at
        if seconds >= RATE_WINDOW_SECONDS:
            self._last = self._count / seconds
            self._started_at, self._count = now, 0


class SharedPool(ChildPool[SharedChild]):
    """Executes attempts as coroutines, at most as many at once as there are permits."""

    def __init__(self, workload: Workload, permits: Permits, events: EventQueue) -> None:
        super().__init__(workload, permits, events)
        self._rate = Rate()
        self._waiting_since = 0.0

    # -- handing out -------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return how many attempts the pool can take, with all permits that are free
        on this host.
        """
        permits, held = self._permits.fill(self._permits.count), self._held()
        ahead = min(permits, int(self._rate.per_second(clock.now()) * AHEAD_SECONDS))
        # counted as idle before it is: by the time that more is claimed, it will be
        return Capacity(permits, max(0, permits + ahead // 2 - held), permits + ahead, held)

    def running(self) -> int:
        """Return how many attempts are executing."""
        return sum([child.board.started_count() for child in self._children.values()])

    def _held(self) -> int:
        return len(self._waiting) + sum([len(child.in_flight) for child in self._children.values()])

    def release_idle_capacity(self) -> None:
        """Free the permits that nothing is executed or waits for."""
        self._permits.shrink(self._held())

    def _dispatch(self) -> None:
        self._is_dispatching = False
        if self._is_draining:
            self._return_waiting()
        try:
            permits = self._permits.fill(min(self._permits.count, self._held()))
            retired = sum(
                [len(child.in_flight) for child in self._children.values() if child.is_retired]
            )
            able = permits - retired  # may execute at once in the other children, which share it
            limit = math.ceil(
                able / min(os.cpu_count() or 1, math.ceil(self._permits.count / MAX_PER_CHILD))
            )
            while self._waiting and able > 0:
                child = self._child(limit)
                count = min(
                    len(self._waiting),
                    max(MESSAGE_SIZE, limit - len(child.in_flight)),
                    len(child.free),
                )
                child.send([self._waiting.popleft() for _ in range(count)], limit)
                child.is_retired = child.is_retired or child.sent_count >= MAX_RUNS_PER_CHILD
        except EnvironmentFailed as error:
            # else it is tried again when one ends
            if not any(child.in_flight for child in self._children.values()):
                self._events.put(ExecutorFailed(error))

    def _child(self, limit: int) -> SharedChild:
        """Return the child to hand attempts to: the one with the fewest, or a new one if all
        execute ``limit``.
        """
        able = [child for child in self._children.values() if not child.is_retired and child.free]
        best = min(able, key=lambda child: len(child.in_flight), default=None)
        wanted = min(os.cpu_count() or 1, math.ceil(self._permits.count / MAX_PER_CHILD))
        if best is not None and (len(best.in_flight) < limit or len(able) >= wanted):
            return best
        self._check_forks()
        try:
            return self._fork()
        except EnvironmentFailed:
            if best is None:
                raise
            return best

    def _fork(self) -> SharedChild:
        child = SharedChild(self._environment, 2 * self._permits.count)
        self._children[child.pid] = child
        child.loop.add_reader(child.results, self._read, child)
        child.loop.add_reader(child.output.descriptor, self._read_output, child)
        return child

    # -- stopping ----------------------------------------------------------------------------------

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Cancel the coroutines of ``attempts``; kill their process if they have not ended
        ``grace`` seconds later.
        """
        seconds = KILL_GRACE_SECONDS if grace is None else grace
        wanted, kill_at = set(attempts), clock.now() + seconds
        for child in list(self._children.values()):
            flights = [flight for flight in child.in_flight.values() if flight.attempt in wanted]
            for flight in flights:
                flight.kill_at = kill_at if flight.kill_at is None else min(kill_at, flight.kill_at)
            if flights:
                child.stop([flight.index for flight in flights])
                self._kill_if_due(child, clock.now())
        self._return_stopped()

    def release_unstarted(self) -> None:
        """Return what no child holds; hand out nothing from now on."""
        self._is_draining = True
        self._return_waiting()
        for child in self._children.values():
            child.withdraw()

    def _retire_all(self) -> None:
        super()._retire_all()
        for child in self._children.values():
            if child.in_flight:
                child.withdraw()

    async def close(self) -> None:
        """Wait until no child is left; kill those that do not exit."""
        self._retire_all()
        deadline = clock.now() + CLOSE_TIMEOUT_SECONDS
        while self._children:
            for child in list(self._children.values()):
                if clock.now() > deadline or child.in_flight:
                    child.kill()
                self._read(child)
            await asyncio.sleep(0.002)
        self._permits.shrink(0)

    # -- watching ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Stop what exceeds its timeout, kill what does not stop, and children whose event loop is
        blocked.
        """
        now = clock.now()
        for child in list(self._children.values()):
            if child.in_flight:
                child.read_progress()
                self._check_child(child, now)
            if child.kill_at is not None and now >= child.kill_at:
                child.kill()
        self._close_idle(now)
        if not self._waiting:
            self._waiting_since = now
        elif now - self._waiting_since > MAX_WAIT_SECONDS:
            self._return_waiting()
        self._dispatch_soon()

    def _check_child(self, child: SharedChild, now: float) -> None:
        late, is_stuck, step = list[Attempt](), False, child.board.step()
        for flight in child.in_flight.values():
            if flight.times_out_at is not None:
                if now > flight.times_out_at:
                    late.append(flight.attempt)
            elif child.has_started(flight):
                if step.is_import and step.executing == flight.index:
                    continue  # its handler has not been called
                flight.times_out_at = now + flight.attempt.job.timeout.total_seconds()
            elif now - flight.sent_at > MAX_WAIT_SECONDS:
                is_stuck = True
        if is_stuck and child.board.is_ready and not step.is_import:
            child.withdraw()
        if late := [attempt for attempt in late if attempt.stopped is None]:
            for attempt in late:
                why = f"still running after {durations.show(attempt.job.timeout)}, stopped"
                attempt.stopped = AttemptEnd(EndKind.RAISED, why, "Timeout")
            self.stop(late)
        child.stall.observe(step, now)
        if not child.board.is_ready:
            if child.stall.seconds > START_TIMEOUT_SECONDS:
                child.kill()
        elif child.stall.is_over(BLOCKED_MARGIN_SECONDS) and child.killed_for is None:
            # its own watchdog has not killed it: C code holds the interpreter lock
            self._kill(child, child.executing(), _blocked())
        self._kill_if_due(child, now)

    def _kill_if_due(self, child: SharedChild, now: float) -> None:
        # else its exit is not read yet
        for flight in child.in_flight.values() if child.killed_for is None else ():
            if flight.kill_at is not None and now >= flight.kill_at and child.has_started(flight):
                attempt = flight.attempt
                if attempt.stopped is not None and attempt.stopped.kind is EndKind.RAISED:
                    why = (
                        f"{attempt.stopped.error}; it did not end, and was killed with its process"
                    )
                    attempt.stopped = attempt.stopped._replace(error=why, error_type=UNSTOPPABLE)
                self._kill(child, attempt, "did not end when it was stopped")
                return

    def _kill(self, child: SharedChild, attempt: Attempt | None, why: str) -> None:
        child.killed_for = child.killed_for or (attempt, why)
        child.is_retired = True
        child.kill()

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, child: SharedChild) -> None:
        try:
            for batch in child.receive():
                self._handle(child, batch)
        except EOFError:
            self._handle_exit(child)
        except (ValueError, TypeError):
            self._kill(child, None, "wrote to a file descriptor that it did not open")
            self._handle_exit(child)
        self._dispatch_soon()

    def _handle(self, child: SharedChild, batch: Batch) -> None:
        for index, content in batch.outputs:
            if (flight := child.in_flight.get(index)) is not None:
                flight.output = flight.output or OutputPipe(-1)
                flight.output.add(flight.attempt.run, content)
                flight.attempt.printing = flight.output.tail
        plain = []
        for index, took in batch.successes:
            if (flight := child.take(index)) is not None:
                flight.attempt.took = took
                if flight.output is None:
                    plain.append(flight.attempt)
                else:
                    self._end(flight, RETURNED)
        if plain:
            self._events.put(Succeeded(plain))
        for values in batch.reports:
            report = TaskEnd.decode(values)
            if (flight := child.take(report.number)) is not None:
                flight.attempt.took = report.took
                self._end(flight, report.end or RETURNED)
        returned = [
            flight.attempt for index in batch.returned if (flight := child.take(index)) is not None
        ]
        if returned:
            self._events.put(ReturnedUnstarted(returned))
        self._rate.count(len(batch.successes) + len(batch.reports), clock.now())
        if batch.is_leaking:
            child.is_retired = True

    def _end(self, flight: InFlight, end: AttemptEnd) -> None:
        attempt = flight.attempt
        if flight.output is not None:
            output, omitted_bytes = flight.output.take(is_kept=attempt.keeps_output(end))
            end = end._replace(output=output, omitted_bytes=omitted_bytes)
        del self._failed_starts[attempt]
        self._events.put(Ended(attempt, end))

    def _read_output(self, child: SharedChild) -> None:
        content = child.output.read()
        child.output.add(None, content)
        if child.output.is_closed:
            child.loop.remove_reader(child.output.descriptor)

    # -- the end of a child ------------------------------------------------------------------------

    def _handle_exit(self, child: SharedChild) -> None:
        """Handle the end of a child, which has closed its pipe of results."""
        was_ready = child.board.is_ready
        child.read_progress()
        status = child.reap()
        del self._children[child.pid]
        self._note_fork(was_ready, status)
        self._read_output(child)
        culprit, why, stack = self._cause(child, status)
        unstarted, started = [], []
        for flight in list(child.in_flight.values()):
            state = child.state(flight)
            if state == board.NOT_STARTED:
                unstarted.append(flight)
            elif state == board.SUCCEEDED:
                self._end(flight, RETURNED)
            else:
                started.append(flight)
        count = child.executed_count + len(child.in_flight) - len(unstarted)
        for flight in started:
            if flight.attempt is culprit:
                end = AttemptEnd(
                    EndKind.RAISED,
                    why,
                    BLOCKED if stack or why == _blocked() else WORKER_DIED,
                    stack,
                )
            else:
                end = AttemptEnd(EndKind.RAISED, _of_neighbour(culprit, why, count), WORKER_DIED)
            self._end(flight, end)
        child.kill_group()
        child.output.take(is_kept=False)
        child.close()
        for flight in unstarted:
            failed = (
                self._failed_start(flight.attempt, status) if was_ready and not started else None
            )
            if failed is None:
                self._waiting.appendleft(flight.attempt)
            else:
                self._end(flight, failed)
        self._return_stopped()

    def _cause(self, child: SharedChild, status: int) -> tuple[Attempt | None, str, str]:
        """Return which attempt ended the process, if that is known, what it did, and a stack."""
        if note := child.board.note():
            where, _, stack = note.partition("\n")
            return child.executing(), f"{_blocked()} at {where}", stack
        if child.killed_for is not None:
            return *child.killed_for, ""
        is_by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        # SIGKILL is sent from outside, possibly because memory is short: what was executing need
        # not be the reason
        return None if is_by_signal else child.executing(), exit_cause(status), ""


def _blocked() -> str:
    return f"blocked the event loop for {BLOCKED_SECONDS:.0f}s"


def _of_neighbour(culprit: Attempt | None, why: str, count: int) -> str:
    others = (
        f"its process executed {count} runs" if count > 1 else "its process executed no other run"
    )
    if culprit is None:
        return f"{why} ({others})"
    run = culprit.run
    return f"its process ended because of run {run.id} ({run.job_type}), which shared it: {why}"
