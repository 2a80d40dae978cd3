"""The queue through which executors and outcomes report to the worker."""

from __future__ import annotations

import asyncio
from typing import Any


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
