"""What keeps this host from using an executor at present: others read it with status, report and
doctor.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import psycopg

from yamlsched.sync import lacks
from yamlsched.worker.executor import wait
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Unanswered, WorkerSession

REPEAT_SECONDS = 60.0  # readers take a fault for ended that is not repeated for three times as long
TIMEOUT_SECONDS = 5.0


class Faults:
    """Writes the fault of ``executor`` at ``place``, a host and the path of its file, while there
    is one.

    The first one opens a session. Nothing waits for it, and what the server does not take is
    written later.
    """

    def __init__(self, dsn: str, namespace: str, place: tuple[str, str], executor: str) -> None:
        self._session = WorkerSession(Database(dsn), WORKER_SETTINGS)
        self._namespace, self._place, self._executor = namespace, place, executor
        self._why = ""
        self._changed, self._tried = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, why: str) -> None:
        """Note why the executor cannot be used; "": it can."""
        if why == self._why:
            return
        self._why = why
        self._tried.clear()
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is new, if the server takes it soon."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), TIMEOUT_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._session.drop()

    async def _write(self) -> None:
        async def write(connection: psycopg.AsyncConnection[Any]) -> None:
            reason = f'executor "{self._executor}": {self._why}' if self._why else ""
            await lacks.note_fault(connection, self._namespace, self._place, self._executor, reason)

        while True:
            self._changed.clear()
            is_written = False
            with contextlib.suppress(Unanswered, psycopg.Error):
                await self._session.run(write, TIMEOUT_SECONDS)
                is_written = True
            if not self._changed.is_set():
                self._tried.set()
            await wait(self._changed, REPEAT_SECONDS if self._why or not is_written else math.inf)
