"""A worker with pools that end attempts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import psycopg

from support.rows import a_job
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.schedule.job import Job, Mode, Queue
from yamlsched.worker.attempt import (
    Attempt,
    Capacity,
    Ended,
    EventQueue,
    ReturnedUnstarted,
    Succeeded,
    WorkerLimits,
    Workload,
)
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.claims import Claims
from yamlsched.worker.local.pool import Pool
from yamlsched.worker.queues import Queues
from yamlsched.worker.worker import Worker

RAISED = AttemptEnd(EndKind.RAISED, "no route to host", "OSError")


class ScriptedPool:
    """Ends attempts at once: the first is returned unstarted, the second has failed, all others have succeeded."""

    def __init__(self, events: EventQueue) -> None:
        self.events = events
        self.count = 0
        self.is_closed = False

    def submit(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self.count += 1
            if self.count == 1:
                self.events.put(ReturnedUnstarted([attempt]))
            elif self.count == 2:
                self.events.put(Ended(attempt, RAISED))
            else:
                attempt.took = 0.1
                self.events.put(Succeeded([attempt]))

    def capacity(self) -> Capacity:
        return Capacity(parallel=10, total=10, held=0)

    def stop(self, attempts: Iterable[Attempt], grace: float) -> None: ...
    def release_unstarted(self) -> None: ...
    def release_idle_capacity(self) -> None: ...
    def check(self) -> None: ...
    def reload(self, workload: Workload) -> None: ...

    async def close(self) -> None:
        self.is_closed = True


def a_worker(workload: Workload, pool: Any, events: EventQueue) -> Worker:
    return Worker(workload, pool, events, WorkerLimits(), lambda name, queue, workload: pool)


def test_a_worker_records_what_its_pool_reports(db: psycopg.Connection[Any], dsn: str) -> None:
    # given four due runs
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', now(), 1 from generate_series(1, 4)",
        [a_job(db)],
    )
    job = Job(name="purge", handler="h.f")
    events = EventQueue()
    pool = ScriptedPool(events)
    workload = Workload(dsn, "default", {"purge": job}, ClaimScope(), Path("schedules.yaml"))

    # when a worker drains them
    report = asyncio.run(a_worker(workload, pool, events).run())

    # then each outcome is in the database: the run that was returned was claimed again, at no cost
    assert pool.count == 5
    assert pool.is_closed
    assert report.dead_count
    rows = db.execute(
        "select status, attempts, last_error from yamlsched.job_runs order by status"
    ).fetchall()
    assert [tuple(row) for row in rows] == [
        ("dead", 1, "no route to host"),
        *[("succeeded", 1, None)] * 3,
    ]


class ReturningPool(ScriptedPool):
    """Executes two attempts at a time, but returns the first two unstarted, once it has got four others."""

    worker: Worker

    def __init__(self, events: EventQueue) -> None:
        super().__init__(events)
        self.submitted: list[int] = []
        self.first: list[Attempt] = []

    def submit(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self.submitted.append(attempt.run.id)
            if len(self.submitted) <= 2:
                self.first.append(attempt)
            else:
                attempt.took = 0.1
                self.events.put(Succeeded([attempt]))
        if len(self.submitted) == 6:
            self.events.put(ReturnedUnstarted(self.first))

    def capacity(self) -> Capacity:
        is_returning = len(self.submitted) == 6 and not self.worker.attempts.isdisjoint(self.first)
        return Capacity(parallel=2, total=2, held=2 if is_returning else 0)


def test_runs_that_were_released_are_claimed_before_later_ones(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', now() - (11 - n) * interval '1 second', 1 from generate_series(1, 10) n",
        [a_job(db)],
    )
    ids = [row.id for row in db.execute("select id from yamlsched.job_runs order by run_at")]
    events = EventQueue()
    pool = ReturningPool(events)
    workload = Workload(
        dsn,
        "default",
        {"purge": Job(name="purge", handler="h.f")},
        ClaimScope(),
        Path("schedules.yaml"),
    )
    pool.worker = a_worker(workload, pool, events)

    asyncio.run(pool.worker.run())

    assert pool.submitted == [*ids[:6], *ids[:2], *ids[6:]]


def test_a_reload_adds_and_removes_queues_while_the_worker_claims_from_the_others() -> None:
    events = EventQueue()
    session: Any = None
    queues = Queues(
        cast(Pool, ScriptedPool(events)),
        lambda name: Claims(session, "default", "web-1:1", name),
        lambda name, queue, workload: cast(Pool, ScriptedPool(events)),
    )

    def serve(**named: Queue) -> None:
        jobs = {
            name: Job(name=name, handler="h.f", queue=name, queue_rules=queue)
            for name, queue in named.items()
        }
        queues.open(Workload("", "default", jobs, ClaimScope(), Path("schedules.yaml")))

    serve(default=Queue(), web=Queue())
    claiming = iter(queues)
    first = next(claiming)
    serve(default=Queue(), mail=Queue(Mode.ASYNC))

    assert [first.queue, *(claims.queue for claims in claiming)] == ["default", "web"]
    assert [claims.queue for claims in queues] == ["default", "mail"]
    assert [queues.pool(claims) is queues.processes for claims in queues] == [True, False]
    assert [claims.queue for claims in queues.in_turn()] == ["mail", "default"]
    assert len(queues.pools) == 2
    serve(default=Queue())
    assert len(queues.pools) == 2  # the other one may hold attempts
