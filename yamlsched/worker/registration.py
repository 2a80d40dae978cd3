"""A worker's rows in ``yamlsched.workers``: one for each queue that it serves.

They show who works, and say which workers need not be started. They decide nothing about runs.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.db.query import AsyncConnection, Connection, execute, now
from yamlsched.errors import Refused
from yamlsched.worker import clock
from yamlsched.worker.sessions import Unanswered, WorkerSession

BEAT_INTERVAL_SECONDS = 15.0
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class WorkerName:
    """Who a worker is. ``path`` is that of its file.

    ``is_own``: the id was made of the host and the process, and names no other one.
    """

    namespace: str
    id: str
    host: str
    path: str
    revision: str | None
    is_own: bool

    def claims(self) -> str:
        """Return with what ``locked_by`` of its runs begins: the id."""
        return self.id if self.is_own else f"{self.id}:{own_id()}"


def own_id() -> str:
    """Return the id of a worker that was started without one."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass
class Registration:
    """Keeps the rows of one worker. ``reported_at`` of each queue says which rows are its own."""

    name: WorkerName
    reported_at: dict[str, datetime] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)  # that were started, by queue
    named: frozenset[str] = frozenset()  # by --queue: served also without jobs
    cannot_start: Mapping[str, str] = field(default_factory=dict)  # jobs of its queues, and why
    _is_leaving: bool = False
    _next_at: float = 0.0

    def note_started(self, queue: str, count: int) -> None:
        """Count runs that were handed over for execution. The first ones are reported at once: a
        worker that has executed a run was no failed start, however soon it dies.
        """
        if count and not self.runs[queue]:
            self._next_at = 0.0
        self.runs[queue] += count

    async def report_if_due(
        self, session: WorkerSession, queues: Collection[str], is_leaving: bool
    ) -> bool:
        """Write that the worker is there, each 15 s and when it starts to leave, and that it has
        left queues that it no longer serves.

        Return False if another process has its id meanwhile. A server that does not answer is asked
        again with the next beat.
        """
        wanted = {*queues, *self.named}
        is_same = is_leaving == self._is_leaving and self.reported_at.keys() >= wanted
        if is_same and clock.now() < self._next_at:
            return True
        self._next_at, self._is_leaving = clock.now() + BEAT_INTERVAL_SECONDS, is_leaving
        left = self.reported_at.keys() - wanted
        rows = await self._report(session, self.values(wanted | left, is_leaving, left))
        if rows is None:
            return True
        self.note(row for row in rows if row.queue in wanted)
        return self.reported_at.keys() == wanted

    async def end(self, session: WorkerSession) -> None:
        """Write that the worker has ended. If the server does not answer, it is lost later."""
        queues = self.reported_at.keys()
        await self._report(session, self.values(queues, is_leaving=True, ended=queues))

    async def _report(self, session: WorkerSession, values: dict[str, Any]) -> list[Any] | None:
        async def ask(connection: AsyncConnection) -> list[Any]:
            cursor = await execute(connection, "workers.report", **values)
            return await cursor.fetchall()

        try:
            return await session.run(ask, TIMEOUT_SECONDS)
        except Unanswered:
            return None
        except psycopg.Error as error:
            log.warning("worker.not_reported", error=reason(error))
            return None

    def note(self, rows: Iterable[Any]) -> None:
        """Note which rows are its own."""
        self.reported_at = {row.queue: row.reported_at for row in rows}

    def values(
        self, queues: Iterable[str], is_leaving: bool = False, ended: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the parameters of the statement that writes the rows of ``queues``."""
        names = sorted(queues)
        return {
            **asdict(self.name),
            "queues": names,
            "reported_ats": [self.reported_at.get(queue) for queue in names],
            "runs": [self.runs[queue] for queue in names],
            "has_ended": [queue in ended for queue in names],
            "is_leaving": is_leaving,
            "cannot_start": Jsonb(self.cannot_start),
            "now": None,
        }


def register(
    connection: Connection,
    name: WorkerName,
    queues: Collection[str],
    named: Collection[str],
    max_workers: Mapping[str, int],
    cannot_start: Mapping[str, str],
) -> Registration | str:
    """Write the rows of a worker that starts, or return why it has to leave.

    ``queues`` are those of its jobs, ``named`` those of --queue. ``max_workers`` are those of
    queues whose workers are started, and ``cannot_start`` the jobs that it cannot start. Raises
    Refused if the id was requested for something else.
    """
    registration = Registration(name, named=frozenset(named), cannot_start=cannot_start)
    wanted = sorted({*queues, *named})
    with connection.transaction() as transaction:
        if not name.is_own and (why := _refusal(connection, registration, wanted, max_workers)):
            return why
        rows = execute(connection, "workers.report", **registration.values(wanted)).fetchall()
        if len(rows) < len(wanted):
            raise psycopg.Rollback(transaction)
        registration.note(rows)
        registration._next_at = clock.now() + BEAT_INTERVAL_SECONDS
        return registration
    return "another worker with this id is live"


def _refusal(
    connection: Connection,
    registration: Registration,
    queues: Sequence[str],
    max_workers: Mapping[str, int],
) -> str | None:
    """Return why a worker with an id may not start, and write it if that is no failed start."""
    worker = registration.values(queues)
    if other := execute(connection, "workers.other_requests", **worker).fetchone():
        raise Refused(
            f'worker "{worker["id"]}" was requested for queue "{other.queue}" of namespace'
            f' "{other.namespace}": pass --queue {other.queue} and the file of that namespace'
        )
    for queue in sorted(max_workers.keys() & set(queues)):
        place = {**worker, "queue": queue}
        execute(connection, "workers.lock_queue", **place)
        limits = {"now": now(connection), "max_workers": max_workers[queue]}
        if execute(connection, "workers.refuse_above", **place | limits).fetchall():
            return f"{max_workers[queue]} started workers of queue {queue} are live"
    return None
