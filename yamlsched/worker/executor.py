"""What the pools of processes report to their worker, through its ``EventQueue``.

Each attempt that was submitted leads to exactly one of ``Succeeded``, ``Ended`` and
``ReturnedUnstarted``.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from yamlsched.handler.programs import was_terminated
from yamlsched.runs.lifecycle import AttemptEnd
from yamlsched.worker.attempt import Attempt


class Succeeded(NamedTuple):
    """The handlers of ``attempts`` returned nothing, and enqueued nothing."""

    attempts: list[Attempt]


class Ended(NamedTuple):
    """An attempt ended in any other way, its loss by the pool included."""

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


class Failed(NamedTuple):
    """A task of the worker raised ``error``, or a pool can start nothing at all."""

    error: BaseException


class Capacity(NamedTuple):
    """How many attempts a pool can take."""

    # that may execute at once; 0: none at present, others on this host use all permits
    parallel: int
    total: int  # that it can hold and start within some tens of milliseconds
    held: int  # that it holds, of ``total``


class EventQueue:
    """Events in order, and one wakeup for their consumer."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._wakeup = asyncio.Event()

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
