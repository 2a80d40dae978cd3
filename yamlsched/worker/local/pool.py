"""The pool of child processes: forked when there is work, handed attempts, watched, stopped.

A child has a capacity: one attempt at once, or as many as there are permits, as coroutines of one
event loop. An attempt costs its neighbours nothing, unless it ends their process: by a crash, by
blocking the event loop, or by not ending when it is stopped. Then each attempt that had started
fails, and the next attempt of each is alone in a process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
from collections import deque
from collections.abc import Iterable
from typing import Any

from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.programs import with_last_lines
from yamlsched.runs.lifecycle import WORKER_DIED, AttemptEnd, EndKind, Keep
from yamlsched.worker import clock
from yamlsched.worker.attempt import (
    Attempt,
    Capacity,
    Ended,
    EventQueue,
    Failed,
    Kind,
    ReturnedUnstarted,
    Succeeded,
    Workload,
)
from yamlsched.worker.local import protocol
from yamlsched.worker.local.child import ChildHandle
from yamlsched.worker.local.deaths import ends_by_death, exit_cause
from yamlsched.worker.local.protocol import Success
from yamlsched.worker.permits import ConcurrencyPermits

MAX_MESSAGE_BYTES = 1 << 18  # of payload
MAX_MESSAGE_SECONDS = 0.02  # of expected work in one message to a child
LOOKAHEAD_SECONDS = 0.08  # of expected work that may be claimed ahead for one place
MAX_AHEAD_SECONDS = 0.2  # attempts that take longer are not claimed ahead: they could wait for long
# attempts that take less may wait behind others in the same child
QUICK_SECONDS = 0.04
MIN_SECONDS = 1e-4  # as which a quicker attempt counts: a message has at most 200 runs
MAX_WAIT_SECONDS = 1.0  # for attempts of which none can start, because others take long
CLOSE_TIMEOUT_SECONDS = 5.0  # for children that have nothing to do to exit; they may export spans
MAX_IDLE_SECONDS = 300.0  # for which a child is kept that has nothing to do
MAX_FAILED_FORKS = 6  # children in a row that died before they were ready: then no more are started
MAX_AHEAD = 1.0  # coroutines claimed ahead for one place: all have one processor
RETURNED = AttemptEnd(EndKind.RETURNED)


class Pool:
    """Executes attempts in child processes, at most as many at once as there are permits.

    ``is_async``: those of a queue whose handlers are coroutines.
    """

    def __init__(
        self,
        workload: Workload,
        permits: ConcurrencyPermits,
        events: EventQueue,
        is_async: bool = False,
    ) -> None:
        self._workload = workload
        self._permits, self._events, self._is_async = permits, events, is_async
        self._children: dict[int, ChildHandle] = {}  # by process id
        self._waiting = deque[Attempt]()  # for a child
        self._seconds = 1.0  # that attempts take: a moving average
        self._movable_at = 0.0  # when something could start last, or nothing waited
        self._failed_forks, self._fork_failure = 0, ""
        self._is_dispatching = self._is_draining = self._cannot_fork = False

    # -- handing out -------------------------------------------------------------------------------

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Take ``attempts``, and hand them to children soon."""
        self._waiting.extend(attempts)
        self._dispatch_soon()

    def capacity(self) -> Capacity:
        """Return how many attempts the pool can take, with all permits that are free."""
        permits = self._permits.fill(self._permits.count)
        held = len(self._waiting) + sum(
            len(child.assigned) - child.slow_count for child in self._children.values()
        )
        return Capacity(permits, self._total(permits), held)

    def _total(self, permits: int) -> int:
        """Return how many attempts ``permits`` can start soon, including those that execute.

        A place whose attempt takes long starts nothing soon, and neither does a child that cannot
        be forked.
        """
        if self._cannot_fork:
            permits = min(permits, sum(child.capacity for child in self._children.values()))
        places = max(0, permits - sum(child.slow_count for child in self._children.values()))
        if self._seconds > MAX_AHEAD_SECONDS:
            return places
        ahead = LOOKAHEAD_SECONDS / max(self._seconds, MIN_SECONDS)
        return places + int(places * (min(MAX_AHEAD, ahead) if self._is_async else ahead))

    def _learn(self, seconds: float) -> None:
        """Note how long an attempt took. The average falls faster than it rises, so that a slow
        first run is soon forgotten.
        """
        self._seconds += (0.5 if seconds < self._seconds else 0.2) * (seconds - self._seconds)

    def _message_size(self) -> int:
        """Return how many runs that execute one after the other make one message."""
        return max(1, int(MAX_MESSAGE_SECONDS / max(self._seconds, MIN_SECONDS)))

    def running(self) -> int:
        """Return how many permits are in use."""
        return sum([child.load for child in self._children.values()])

    def release_idle_capacity(self) -> None:
        """Free the permits that nothing is executed or waits for."""
        self._permits.shrink(self.running() + len(self._waiting))

    def _dispatch_soon(self) -> None:
        if self._waiting and not self._is_dispatching:
            self._is_dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatching = False
        if self._is_draining:
            self._return_waiting()
        try:
            permits = self._permits.fill(
                min(self._permits.count, self.running() + len(self._waiting))
            )
            while self._waiting:
                if (child := self._child_for(self._waiting[0], permits)) is None:
                    break
                free = max(1, permits - self.running())
                share = len(self._waiting) // free
                limit = free if child.is_loop else max(1, min(share, self._message_size()))
                child.send(self._next_message(min(limit, len(child.free))))
        except EnvironmentFailed as error:
            if not self.running():  # otherwise a running child takes it
                self._events.put(Failed(error))

    def _next_message(self, limit: int) -> list[Attempt]:
        """Take what is handed over at once: up to ``limit`` attempts."""
        message: list[Attempt] = []
        queue, size = self._waiting, 0
        while queue and size < MAX_MESSAGE_BYTES:
            attempt = queue[0]
            if attempt.is_suspect:
                limit = 1  # sent alone, so that the death of its child has no other cause
            is_other = bool(message) and attempt.is_command is not message[0].is_command
            if message and (len(message) >= limit or is_other):
                break
            message.append(queue.popleft())
            size += len(attempt.run.payload)
        return message

    def _child_for(self, attempt: Attempt, permits: int) -> ChildHandle | None:
        kind = attempt.kind
        able = [
            child
            for child in self._children.values()
            if child.kind is kind
            and child.free
            and not child.is_retired
            and child.commands.is_flushed
        ]
        if self.running() < permits:
            free = [child for child in able if child.is_loop or not child.assigned]
            return free[-1] if free else self._fork(kind)
        if self._seconds > QUICK_SECONDS or kind is Kind.COROUTINE or attempt.is_suspect:
            return None
        # the child need not wait for us
        size = self._message_size()
        busy = [
            child
            for child in able
            if not child.slow_count
            and len(child.assigned) <= size
            and not any(each.is_suspect for each in child.assigned.values())
        ]
        return min(busy, key=lambda child: len(child.assigned), default=None)

    # -- what is not started -----------------------------------------------------------------------

    def _requeue(self, attempts: Iterable[Attempt]) -> None:
        """Let other children start ``attempts``, which one has not; return those that are not to be
        started.
        """
        self._waiting.extendleft(reversed(list(attempts)))
        if stopped := [attempt for attempt in self._waiting if attempt.stopped is not None]:
            self._waiting = deque(each for each in self._waiting if each.stopped is None)
            self._events.put(ReturnedUnstarted(stopped))
        self._dispatch_soon()

    def _return_waiting(self) -> None:
        if self._waiting:
            self._events.put(ReturnedUnstarted(list(self._waiting)))
            self._waiting.clear()

    # -- children: forked, reaped, stopped ---------------------------------------------------------

    def _fork(self, kind: Kind) -> ChildHandle:
        self._cannot_fork = True
        if self._failed_forks >= MAX_FAILED_FORKS:
            raise EnvironmentFailed(
                f"child processes die before they are ready for a run: {self._fork_failure}"
            )
        child = ChildHandle(self._workload, kind)
        self._cannot_fork = False
        self._children[child.pid] = child
        child.loop.add_reader(child.results, self._read, child)
        child.loop.add_reader(child.output, child.read_output)
        return child

    def _reap(self) -> None:
        """Handle the end of children."""
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
        child.read_rest()
        child.read_progress()
        self._failed_forks = 0 if child.memory.shared.is_ready else self._failed_forks + 1
        self._fork_failure = exit_cause(status)
        unstarted, startable, started = [], list[Attempt](), dict[int, Attempt]()
        for index, attempt in child.assigned.items():
            state = child.memory.state(index)
            if state == protocol.NOT_STARTED:
                unstarted.append(attempt)
            elif state == protocol.SUCCEEDED:
                self._end(child, attempt, RETURNED)
            else:
                started[index] = attempt
        ends = ends_by_death(child, started, child.sent_count - len(unstarted), status, used)
        for attempt, end in ends:
            self._end(child, attempt, end)
        if started or child.was_stopped or child.is_loop:
            child.kill_group()
        child.assigned.clear()
        child.close()
        for attempt in unstarted:
            if attempt.is_suspect and attempt.stopped is None:
                why = f"its process died before it could start it: {exit_cause(status)}"
                self._end(child, attempt, AttemptEnd(EndKind.RAISED, why, WORKER_DIED))
            else:
                # a run that kills its child each time must not be handed over for ever
                attempt.is_suspect = child.memory.shared.is_ready and not started
                startable.append(attempt)
        self._requeue(startable)

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Stop ``attempts``, whose ``stopped`` is the reason; kill them after ``grace`` seconds.

        None: after the time that suits each, for a command its ``kill_after``.
        Attempts that it no longer holds are ignored.
        """
        wanted = set(attempts)
        for child in list(self._children.values()):
            indexes = [index for index, attempt in child.assigned.items() if attempt in wanted]
            if indexes:
                self._requeue(child.stop(indexes, grace))
        self._requeue([])

    def release_unstarted(self) -> None:
        """Return all attempts that have not started; start none from now on."""
        self._is_draining = True
        for child in self._children.values():
            self._requeue(child.withdraw())
        self._return_waiting()

    def reload(self, workload: Workload) -> None:
        """Let children exit after what they hold. New ones import the handlers of ``workload``."""
        self._workload = workload
        self._retire_all()

    def _retire_all(self) -> None:
        for child in self._children.values():
            child.is_retired = True
            if child.is_loop:
                self._requeue(child.withdraw())
        self._close_idle(clock.now())

    def _close_idle(self, now: float) -> None:
        for child in self._children.values():
            is_old = now - child.idle_since > MAX_IDLE_SECONDS
            if not child.assigned and not child.is_closed and (child.is_retired or is_old):
                child.close_input()

    async def close(self) -> None:
        """Wait until no child is left; kill those that execute something, or do not exit."""
        self._is_draining = True
        self._retire_all()
        deadline = clock.now() + CLOSE_TIMEOUT_SECONDS
        while self._children:
            for child in self._children.values():
                if child.assigned or clock.now() > deadline:
                    child.kill()
            self._reap()
            await asyncio.sleep(0.002)
        self._permits.shrink(0)

    # -- watching ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Stop what exceeds its timeout, replace children that hang, return what no child can start
        soon. Called when a child has ended, and several times a second while there are attempts.

        Also read what handlers have reported of their progress.
        """
        self._reap()
        now = clock.now()
        for child in list(self._children.values()):
            self._requeue(child.check(now))
        self._close_idle(now)
        if not self._waiting or self._total(self._permits.held) > 0:
            self._movable_at = now
        elif now - self._movable_at > MAX_WAIT_SECONDS:
            self._return_waiting()
        self._dispatch_soon()

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, child: ChildHandle) -> None:
        try:
            for kind, content in child.receive():
                self._handle(child, kind, content)
        except (ValueError, TypeError, pickle.UnpicklingError):
            child.loop.remove_reader(child.results)
            culprit = None if child.is_loop else child.current()
            child.kill_for(culprit, "the handler wrote to a file descriptor that it did not open")
        self._dispatch_soon()

    def _handle(self, child: ChildHandle, kind: int, content: Any) -> None:
        match kind:
            case protocol.OUTPUT:
                index, printed = content
                if (attempt := child.assigned.get(index)) is not None:
                    child.output_of(attempt).add(printed)
            case protocol.RETIRE:
                self._requeue(child.retire())
            case protocol.WAIT:
                child.read_rest()
                child.resume()
            case protocol.SUCCESSES:
                self._handle_successes(child, content)
            case protocol.END:
                index, took, end = content
                if (attempt := child.take(index)) is not None:
                    attempt.took = took
                    self._learn(took)
                    self._end(child, attempt, pickle.loads(end))
            case protocol.WITHDRAWN:
                if (attempt := child.take(content)) is not None:
                    self._requeue([attempt])
            case _:
                raise ValueError(kind)

    def _handle_successes(self, child: ChildHandle, successes: list[Success]) -> None:
        self._learn(sum([took for _, took, _ in successes]) / len(successes))
        attempts = child.succeed(successes)
        for attempt in attempts:
            if attempt.output is not None:
                self._end(child, attempt, RETURNED._replace(usage=attempt.usage))
        if plain := [attempt for attempt in attempts if attempt.output is None]:
            self._events.put(Succeeded(plain))

    def _end(self, child: ChildHandle, attempt: Attempt, end: AttemptEnd) -> None:
        if attempt.output is not None:
            output, omitted_bytes = attempt.output.take(is_kept=attempt.keeps_output(end))
            end = end._replace(output=output, omitted_bytes=omitted_bytes)
        if attempt.is_command:
            is_secret = attempt.job.output.keep is Keep.NEVER
            end = with_last_lines(end, "its output is not kept" if is_secret else end.output)
        self._events.put(Ended(attempt, end))
