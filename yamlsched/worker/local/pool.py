"""The pool of child processes: forked when there is work, handed attempts, watched, stopped."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterable

from yamlsched import durations
from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.programs import with_last_lines
from yamlsched.runs.lifecycle import WORKER_DIED, AttemptEnd, EndKind, Keep
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.executor import Capacity, Ended, EventQueue, ExecutorFailed, Succeeded
from yamlsched.worker.local import protocol
from yamlsched.worker.local.child import ChildHandle
from yamlsched.worker.local.child_pool import KILL_GRACE_SECONDS, ChildPool, Estimates, exit_cause
from yamlsched.worker.local.usage import of_killed
from yamlsched.worker.permits import Permits

MAX_MESSAGE_BYTES = 1 << 18  # of payload
MAX_RUNS_PER_CHILD = 50_000  # to limit what leaking handlers can accumulate
SLOW_SECONDS = 0.2  # after which attempts that wait behind a running one go to another child
START_TIMEOUT_SECONDS = 3.0  # for a child to start what it was handed: then others get it
# for attempts while all children are busy with long ones: then they are returned
MAX_WAIT_SECONDS = 1.0
CLOSE_TIMEOUT_SECONDS = 5.0  # for children that have nothing to do to exit; they may export spans
BAD_FRAME = AttemptEnd(
    EndKind.RAISED, "the handler wrote to a file descriptor that it did not open", WORKER_DIED
)


class ProcessPool(ChildPool[ChildHandle]):
    """Executes attempts in child processes, one at a time in each, at most as many at once as there
    are permits.
    """

    def __init__(self, workload: Workload, permits: Permits, events: EventQueue) -> None:
        super().__init__(workload, permits, events)
        self._estimates = Estimates()
        # when all children were found busy with long attempts
        self._stuck_since: float | None = None
        self._cannot_fork = False

    # -- handing out -------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return how many attempts the pool can take, with all permits that are free."""
        permits = self._permits.fill(self._permits.count)
        # a slow child is in neither number: its attempt takes one permit, and no room of others
        held = len(self._waiting) + sum(
            len(c.assigned) for c in self._children.values() if not c.is_slow
        )
        return Capacity(permits, max(0, permits - self.running()), self._total(permits), held)

    def running(self) -> int:
        """Return how many children hold attempts."""
        return sum(1 for child in self._children.values() if child.assigned)

    def release_idle_capacity(self) -> None:
        """Free the permits that nothing is executed or waits for."""
        self._permits.shrink(self.running() + len(self._waiting))

    def _total(self, permits: int) -> int:
        """Return how many attempts ``permits`` children can start soon, including those that they
        hold.

        A child whose attempt takes long starts nothing soon, and neither does one that cannot be
        forked.
        """
        if self._cannot_fork:
            permits = min(permits, len(self._children))
        return (
            max(0, permits - sum(1 for c in self._children.values() if c.is_slow))
            * self._estimates.runs_ahead()
        )

    def _dispatch(self) -> None:
        self._is_dispatching = False
        if self._is_draining:
            self._return_waiting()
        try:
            permits = self._permits.fill(
                min(self._permits.count, self.running() + len(self._waiting))
            )
            while self._waiting:
                busy = [child for child in self._children.values() if child.assigned]
                child = self._child_for(self._waiting[0], busy, permits)
                if child is None:
                    return
                share = max(1, len(self._waiting) // max(1, permits - len(busy)))
                child.send(self._next_message(min(share, MAX_RUNS_PER_CHILD - child.sent_count)))
                child.is_retired = child.is_retired or child.sent_count >= MAX_RUNS_PER_CHILD
        except EnvironmentFailed as error:
            if not self.running():  # otherwise a running child takes it
                self._events.put(ExecutorFailed(error))

    def _next_message(self, limit: int) -> list[Attempt]:
        """Take what is handed over at once: up to ``limit`` attempts that take a few milliseconds
        together.
        """
        message: list[Attempt] = []
        waiting, suspects, size, job = self._waiting, self._failed_starts, 0, None
        while waiting and size < MAX_MESSAGE_BYTES:
            attempt = waiting[0]
            if attempt.job is not job:
                job = attempt.job
                limit = min(limit, self._estimates.message_size(job.name))
            # sent alone, so that the death of its child has no other cause
            is_suspect = attempt in suspects
            is_other = bool(message) and attempt.is_command is not message[0].is_command
            if message and (len(message) >= limit or is_suspect or is_other):
                break
            message.append(waiting.popleft())
            size += len(attempt.run.payload)
            if is_suspect:
                break
        return message

    def _child_for(
        self, attempt: Attempt, busy: list[ChildHandle], permits: int
    ) -> ChildHandle | None:
        if len(busy) < permits:
            idle = [c for c in self._children.values() if not c.assigned and _may_get(c, attempt)]
            return idle[-1] if idle else self._fork(attempt.is_command)
        if not self._are_quick([attempt]):
            return None
        size = self._estimates.message_size(attempt.job.name)
        able = [
            c
            for c in busy
            if c.commands.is_flushed
            and _may_get(c, attempt)
            and not c.is_slow
            and len(c.assigned) <= size
        ]
        best = min(able, key=lambda c: len(c.assigned), default=None)
        return best if best is not None and self._are_quick(best.assigned.values()) else None

    def _are_quick(self, attempts: Iterable[Attempt]) -> bool:
        """Return whether another attempt may wait behind ``attempts``, so that the child need not
        wait for us.
        """
        if self._failed_starts and not self._failed_starts.keys().isdisjoint(attempts):
            return False
        return all(map(self._estimates.is_quick, {attempt.job.name for attempt in attempts}))

    def _requeue(self, attempts: Iterable[Attempt]) -> None:
        """Let other children start ``attempts``, which one has not; return those that are not to be
        started.
        """
        self._waiting.extendleft(reversed(list(attempts)))
        self._return_stopped()
        self._dispatch_soon()

    # -- children: forked, reaped, stopped ---------------------------------------------------------

    def _fork(self, is_for_commands: bool) -> ChildHandle:
        self._cannot_fork = True
        self._check_forks()
        child = ChildHandle(self._environment, is_for_commands)
        self._cannot_fork = False
        self._children[child.pid] = child
        child.loop.add_signal_handler(signal.SIGCHLD, self._reap)
        child.loop.add_reader(child.results, self._read, child)
        child.loop.add_reader(child.output.descriptor, self._read_output, child)
        return child

    def _reap(self) -> None:
        """Handle the end of children (called on SIGCHLD)."""
        for pid in list(self._children):
            try:
                ended, status, used = os.wait4(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status, used = pid, 0, None
            if ended:
                self._handle_exit(self._children.pop(pid), status, used)
        self._dispatch_soon()

    def _handle_exit(
        self, child: ChildHandle, status: int, used: resource.struct_rusage | None
    ) -> None:
        self._read(child)
        self._read_last_output(child)
        self._note_fork(child.memory.is_ready, status)
        child.read_progress()
        unstarted, has_started = [], False
        for index, attempt in child.assigned.items():
            state = child.memory.state(index)
            if state == protocol.NOT_STARTED:
                unstarted.append(attempt)
            elif state == protocol.SUCCEEDED:
                self._end(child, attempt, AttemptEnd(EndKind.RETURNED))
            else:
                has_started = True
                end = AttemptEnd(EndKind.RAISED, _how_it_died(child, state, status), WORKER_DIED)
                usage = of_killed(child.memory, used) if used and not attempt.is_command else None
                self._end(child, attempt, end._replace(usage=usage))
                child.signal_program(signal.SIGKILL)
                child.kill_group()
        if child.was_stopped:
            child.kill_group()
        child.assigned.clear()
        child.output.take(is_kept=False)
        child.close()
        startable = []
        for attempt in unstarted:
            # handed over alone after the first time: only a run that kills its child each time gets
            # as far as its end
            failed = (
                self._failed_start(attempt, status)
                if child.memory.is_ready and not has_started
                else None
            )
            if failed is None:
                startable.append(attempt)
            else:
                self._end(child, attempt, failed)
        self._requeue(startable)

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Stop attempts by SIGTERM, and by SIGKILL ``grace`` seconds later."""
        assigned = {
            attempt: child
            for child in self._children.values()
            for attempt in child.assigned.values()
        }
        for attempt in attempts:
            if (child := assigned.get(attempt)) is not None:
                own_grace = attempt.kill_after if attempt.is_command else KILL_GRACE_SECONDS
                self._requeue(child.stop(attempt, own_grace if grace is None else grace))
        self._return_stopped()

    def release_unstarted(self) -> None:
        """Return what no child has started; hand out nothing from now on."""
        self._is_draining = True
        for child in self._children.values():
            self._waiting.extend(child.withdraw())
        self._return_waiting()

    async def close(self) -> None:
        """Wait until no child is left; kill those that do not exit."""
        self._retire_all()
        deadline = clock.now() + CLOSE_TIMEOUT_SECONDS
        while self._children:
            if clock.now() > deadline:
                for child in self._children.values():
                    child.kill()
            self._reap()
            await asyncio.sleep(0.002)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._permits.shrink(0)

    # -- watching ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Stop what exceeds its timeout, replace children that hang, return what no child can start
        soon.

        Also read what handlers have reported of their progress.
        """
        now = clock.now()
        for child in list(self._children.values()):
            child.read_progress()
            self._check_child(child, now)
        self._close_idle(now)
        if not self._waiting or self._total(self._permits.held) > 0:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > MAX_WAIT_SECONDS:
            self._return_waiting()
        self._dispatch_soon()

    def _check_child(self, child: ChildHandle, now: float) -> None:
        if child.kill_at is not None:
            child.kill_if_due(now)
            return
        attempt = child.running()
        if attempt is None:
            if child.assigned and now - child.active_at > START_TIMEOUT_SECONDS:
                self._requeue(child.retire())
                if child.running() is None:  # it hangs between two attempts
                    child.is_hung = True
                    child.kill_by(now + KILL_GRACE_SECONDS)
            return
        child.active_at = now
        seconds = child.seconds_running(attempt, now)
        if seconds > attempt.job.timeout.total_seconds():
            why = f"still running after {durations.show(attempt.job.timeout)}, killed"
            attempt.stopped = attempt.stopped or AttemptEnd(EndKind.RAISED, why, "Timeout")
            self.stop([attempt])
        elif seconds > SLOW_SECONDS and not child.is_slow:
            child.is_slow = True
            self._requeue(child.withdraw())

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, child: ChildHandle) -> None:
        try:
            for successes, report in child.receive():
                if successes:
                    self._handle_successes(child, successes)
                if report is not None:
                    self._handle_report(child, report)
        except (ValueError, TypeError):
            child.loop.remove_reader(child.results)
            if child.pid in self._children:
                if attempt := child.running():
                    attempt.stopped = attempt.stopped or BAD_FRAME
                child.kill()
        self._dispatch_soon()

    def _handle_successes(self, child: ChildHandle, successes: list[protocol.Success]) -> None:
        if attempts := child.succeed(successes):
            seconds = sum([took for _, took, _ in successes]) / len(successes)
            for job in {attempt.job.name for attempt in attempts}:
                self._estimates.learn(job, seconds)
            if self._failed_starts:
                for attempt in attempts:
                    del self._failed_starts[attempt]
            self._events.put(Succeeded(attempts))

    def _handle_report(self, child: ChildHandle, report: protocol.TaskEnd) -> None:
        attempt = child.end(report.number)
        if report.must_retire:
            self._requeue(child.retire())
            child.resume()
        if attempt is None:
            return  # withdrawn before it started
        if report.end is None:
            self._requeue([attempt])
            return
        if report.has_mark:
            child.output.add(attempt.run, child.take_ended_output(report.number))
        attempt.took = report.took
        # the next runs need no import
        self._estimates.learn(attempt.job.name, report.took - report.import_seconds)
        self._end(child, attempt, report.end)
        if report.has_mark:
            self._pass_on_output(child)  # of those that follow

    def _end(self, child: ChildHandle, attempt: Attempt, end: AttemptEnd) -> None:
        if child.output.run is attempt.run:
            output, omitted_bytes = child.output.take(is_kept=attempt.keeps_output(end))
            end = end._replace(output=output, omitted_bytes=omitted_bytes)
        if attempt.is_command:
            is_secret = attempt.job.output.keep is Keep.NEVER
            end = with_last_lines(end, "its output is not kept" if is_secret else end.output)
        del self._failed_starts[attempt]
        self._events.put(Ended(attempt, end))

    def _read_output(self, child: ChildHandle) -> None:
        child.read_output()
        self._pass_on_output(child)
        output = child.output
        if output.is_closed:
            child.loop.remove_reader(output.descriptor)
        elif seconds := output.wait_seconds():
            # our stderr is not read as quickly as this child prints: only the child waits, and not
            # for long
            child.loop.remove_reader(output.descriptor)
            child.loop.call_later(seconds, self._resume_output, child)

    def _pass_on_output(self, child: ChildHandle) -> None:
        """Pass on what was read, unless it comes after that of an attempt whose end has not been
        handled.
        """
        if not child.sections.has_ended:
            source, content = child.sections.take_rest()
            if content:
                child.output.add(None if source is None else source.run, content)
                if source is not None:
                    source.printing = child.output.tail

    def _read_last_output(self, child: ChildHandle) -> None:
        """Read what a child that has ended has printed, perhaps without a report of its last
        attempt.
        """
        child.read_output()
        for index, content in child.sections.take_all_ended():
            if (attempt := child.assigned.get(index)) is not None:
                child.output.add(attempt.run, content)
        self._pass_on_output(child)

    def _resume_output(self, child: ChildHandle) -> None:
        if self._children.get(child.pid) is child and not child.output.is_closed:
            child.loop.add_reader(child.output.descriptor, self._read_output, child)


def _may_get(child: ChildHandle, attempt: Attempt) -> bool:
    """Return whether ``child`` may be handed ``attempt``: commands are started where no handler was
    executed.
    """
    return not child.is_retired and child.is_for_commands is attempt.is_command


def _how_it_died(child: ChildHandle, state: int, status: int) -> str:
    if state != protocol.ENDED:
        return exit_cause(status)
    how = "hung, and was killed," if child.is_hung else f"died ({exit_cause(status, '')})"
    return f"its process {how} before it could report how the handler ended"
