"""A worker for tests of gates: it claims and finishes runs on its own session, without a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.claiming import WRONGLY_BLOCKED
from support.rows import a_run
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
SECOND, MINUTE, LEASE = timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=2)
SUCCESS, RELEASED = Outcome(Status.SUCCEEDED), Outcome(Status.QUEUED, refund=True)
FAILURE = Outcome(Status.FAILED, delay=MINUTE, error="no route to host")


class Worker:
    """Claims and finishes runs of one queue on its own session, without the sweep of a worker."""

    def __init__(self, dsn: str) -> None:
        self.runner = asyncio.Runner()
        connect = psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        self.connection = self.runner.run(connect)
        self.claims = 0

    def claim(
        self, limit: int = 10, now: datetime = NOW, queue: str = "default"
    ) -> list[ClaimedRun]:
        async def ask() -> list[ClaimedRun]:
            given = (self.connection, "default", f"claim {self.claims}", limit)
            claimed, gated = await claiming.claim(*given, now=now, queue=queue)
            await claiming.claim_gated(
                self.connection, "default", claimed, f"gated {self.claims}", gated, now=now
            )
            return sorted(claimed.runs)

        self.claims += 1
        return self.runner.run(ask())

    def finish(self, run: ClaimedRun, outcome: Outcome = SUCCESS, now: datetime = NOW) -> None:
        assert run.id in self.call(store.finish, "default", [(run, outcome)], now=now)

    def finish_all(self, runs: list[ClaimedRun], now: datetime = NOW) -> None:
        finished = self.call(store.finish, "default", [(run, SUCCESS) for run in runs], now=now)
        assert len(finished) == len(runs)

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        return self.runner.run(function(self.connection, *given, **named))

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


@pytest.fixture
def worker(dsn: str) -> Iterator[Worker]:
    worker = Worker(dsn)
    yield worker
    worker.close()


def limit(db: Db, n: int = 2, name: str = "warehouse") -> None:
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    db.execute(
        "insert into yamlsched.gates values ('default', %s, %s) "
        "on conflict (namespace, name) do update set capacity = excluded.capacity",
        [f"limit/{name}", n],
    )


def due(db: Db, job: int, number: int = 0, **values: Any) -> int:
    return a_run(db, job, **{"run_at": NOW - MINUTE + number * SECOND, **values})


def ids(runs: list[ClaimedRun]) -> list[int]:
    return [run.id for run in runs]


def is_at_rest(db: Db, now: datetime = NOW) -> bool:
    return db.execute(WRONGLY_BLOCKED, {"now": now}).fetchall() == []
