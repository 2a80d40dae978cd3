"""One attempt that a shared child is executing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from yamlsched.runs import AttemptEnd


@dataclass(slots=True, eq=False)
class Executing:
    """The attempt at ``index``: its task, the tasks that its handler has created, and what it has printed."""

    index: int
    on_tasks_ended: Callable[[Executing], None]  # called when its handler has ended, and all other tasks since
    on_exit: Callable[[Executing, BaseException], None]  # called when another task exits
    started: float = field(default_factory=time.perf_counter)
    task: asyncio.Task[Any] | None = None
    others: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: set[Future[Any]] = field(default_factory=set)  # in threads, which cannot be cancelled
    output: deque[bytes] = field(default_factory=deque)  # not sent yet; threads append to it
    output_bytes: int = 0
    is_called: bool = False  # its task has been executed: before, a cancellation would end the task unnoticed
    was_stopped: bool = False
    has_ended: bool = False  # the handler; other tasks may be left
    end: AttemptEnd | None = None  # None: a plain success
    took: float = 0.0  # seconds
    is_reported: bool = False

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this attempt: the first one calls the handler."""
        if self.task is None:
            self.task = task
            return
        self.others.add(task)
        task.add_done_callback(self._on_done)
        if self.has_ended:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self.others.discard(task)
        if self.has_ended and not self.others and not self.is_reported:
            self.on_tasks_ended(self)
