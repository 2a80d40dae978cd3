"""What an executor is: attempts go in through ``submit``, and typed events come out.

An executor is constructed with the ``EventQueue`` of its worker. Each submitted attempt leads to
exactly one event: ``Succeeded``, ``Ended`` or ``ReturnedUnstarted``. The worker owns everything
else: claims, leases, retries, outcomes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from yamlsched.errors import EnvironmentFailed
from yamlsched.handler.programs import was_terminated
from yamlsched.runs.lifecycle import AttemptEnd
from yamlsched.worker.attempt import Attempt, Workload


class Succeeded(NamedTuple):
    """The handlers of ``attempts`` returned nothing, and enqueued nothing."""

    attempts: list[Attempt]


class Ended(NamedTuple):
    """An attempt ended in any other way, its loss by the executor included."""

    attempt: Attempt
    end: AttemptEnd

    @property
    def is_terminated(self) -> bool:
        """Whether SIGTERM ended a command, and this worker has not sent it."""
        attempt = self.attempt
        return attempt.stopped is None and attempt.is_command and was_terminated(self.end)


class ReturnedUnstarted(NamedTuple):
    """``attempts`` were not started, and will not be: this costs them nothing."""

    attempts: list[Attempt]


class ExecutorFailed(NamedTuple):
    """The executor can start nothing at all."""

    error: EnvironmentFailed


ExecutorEvent: TypeAlias = Succeeded | Ended | ReturnedUnstarted | ExecutorFailed


class Capacity(NamedTuple):
    """How many attempts an executor can take."""

    # that may execute at once; 0: none at present, others on this host use all permits
    parallel: int
    total: int  # that it can hold and start within some tens of milliseconds
    held: int  # that it holds, of ``total``


class Executor(Protocol):
    """Executes attempts for a worker, on the worker's event loop. No method blocks."""

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Take ``attempts``, and start them as soon as there is room."""

    def capacity(self) -> Capacity:
        """Return how many attempts it can take; may reserve shared permits for them."""

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Stop ``attempts``, whose ``stopped`` is the reason; kill them after ``grace`` seconds.

        None: after the time that suits each, for a command its ``kill_after``.
        Attempts that it no longer holds are ignored.
        """

    def release_unstarted(self) -> None:
        """Return all attempts that have not started; start none from now on."""

    def release_idle_capacity(self) -> None:
        """Leave to other workers on this host what is not needed for the attempts that it holds."""

    def check(self) -> None:
        """Enforce timeouts. Called when a child has ended, and several times a second while there
        are attempts.
        """

    def reload(self, workload: Workload) -> None:
        """Import handlers again for attempts that start from now on."""

    async def close(self) -> None:
        """Free everything, killing what is still executing. Events that this causes
        are not read.
        """


class EventQueue:
    """Events in order, and one wakeup for their consumer."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: object) -> None:
        self._events.append(event)
        self._wakeup.set()

    def wake(self) -> None:
        """Wake the consumer without an event."""
        self._wakeup.set()

    def take(self) -> list[Any]:
        """Return the events that are there."""
        events, self._events = self._events, []
        return events

    async def wait(self) -> list[Any]:
        """Wait for an event or a wakeup, and return the events."""
        await self._wakeup.wait()
        self._wakeup.clear()
        return self.take()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for ``event``, at most ``seconds``, and clear it."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
    event.clear()
