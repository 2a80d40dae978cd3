"""What both pools of child processes have in common: the attempts that wait for a child, and when children end."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Generic, TypeVar

from yamlsched.errors import EnvironmentFailed
from yamlsched.handling.sessions import ConnectionPermits
from yamlsched.runs import AttemptEnd, EndKind
from yamlsched.worker import clock
from yamlsched.worker.attempt import WORKER_DIED, Attempt
from yamlsched.worker.events import EventQueue
from yamlsched.worker.executors.base import ReturnedUnstarted
from yamlsched.worker.executors.child_process import ChildProcess, Environment
from yamlsched.worker.executors.processes.child_handle import KILL_GRACE_SECONDS, exit_cause
from yamlsched.worker.permits import Permits
from yamlsched.worker.workload import Workload

MAX_FAILED_FORKS = 6  # children in a row that died before they were ready: then no more are started
MAX_FAILED_STARTS = 3  # children that died with an attempt that they had not started: then it has failed
MAX_IDLE_SECONDS = 300.0  # for which a child is kept that has nothing to do
Child = TypeVar("Child", bound=ChildProcess)


class ChildPool(ABC, Generic[Child]):
    """Executes attempts in child processes, at most as many at once as there are permits."""

    def __init__(
        self,
        workload: Workload,
        permits: Permits,
        events: EventQueue,
        session_permits: ConnectionPermits | None = None,
    ) -> None:
        self._environment = Environment(workload, os.environ.get("PGTZ"), session_permits)
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
            raise EnvironmentFailed(f"child processes die before they are ready for a run: {self._fork_failure}")

    def _note_fork(self, was_ready: bool, status: int) -> None:
        """Note how a child has ended: whether it had been ready for a run, and its wait status."""
        self._failed_forks = 0 if was_ready else self._failed_forks + 1
        self._fork_failure = exit_cause(status, "")

    def _failed_start(self, attempt: Attempt, status: int) -> AttemptEnd | None:
        """Count the death of a child that had not started ``attempt``; after a few of them, return its end."""
        self._failed_starts[attempt] += 1
        if self._failed_starts[attempt] < MAX_FAILED_STARTS or attempt.stopped is not None:
            return None
        why = f"{MAX_FAILED_STARTS} child processes died before they could start it: {exit_cause(status, '')}"
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
