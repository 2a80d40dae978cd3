"""Claims, ends, operators and enqueues of many sessions at once, without a sweep: no run may wait for nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.claiming import WRONGLY_BLOCKED
from support.rows import a_job
from yamlsched import db as database
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.runs import claiming
from yamlsched.runs import statements as store
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status

pytestmark = pytest.mark.slow
SECONDS, SESSIONS, MOST = 12.0, 8, 2
OUTCOMES = [
    *[Outcome(Status.SUCCEEDED)] * 6,
    Outcome(Status.SUCCEEDED, result="{}"),
    Outcome(Status.QUEUED, refund=True),
    Outcome(Status.DEAD, error="x"),
]


class Attack:
    """Workers of two queues, and operators. ``alive`` counts what executes, by turn and limit, beside the database."""

    def __init__(self, dsn: str, jobs: dict[int, tuple[str, str | None]], seed: int) -> None:
        self.dsn, self.jobs, self.choice = dsn, jobs, random.Random(seed)
        self.alive: Counter[str] = Counter()
        self.violations: list[str] = []
        self.claimed = 0
        self.end = time.monotonic() + SECONDS
        self.is_draining = False

    def goes_on(self) -> bool:
        return time.monotonic() < self.end or self.claimed <= 500  # a busy machine takes longer

    def _enter(self, run: ClaimedRun, has_turn: bool) -> list[str]:
        limit = next(limit for name, limit in self.jobs.values() if name == run.job_type)
        held = [f"turn {run.job_type}"] if has_turn else []
        held += [f"limit {limit}"] if limit else []
        for what in held:
            self.alive[what] += 1
            if self.alive[what] > (1 if what.startswith("turn") else MOST):
                self.violations.append(f"{what}: {self.alive[what]} at once")
        return held

    async def work(self, name: str, queue: str) -> None:
        """Claim and end runs, as a worker of ``queue``, until the attack is over and nothing is left."""
        number, idle = 0, 0
        async with await psycopg.AsyncConnection.connect(
            self.dsn, autocommit=True, row_factory=namedtuple_row
        ) as connection:
            while self.goes_on() or (self.is_draining and idle < 100):
                number += 1
                claimed, gated = await claiming.claim(
                    connection, "default", f"{name}:{number}", 5, queue=queue
                )
                await claiming.claim_gated(
                    connection, "default", claimed, f"{name}:g{number}", gated
                )
                held = {
                    run.id: self._enter(run, run.scheduled_for is not None) for run in claimed.runs
                }
                self.claimed += len(held)
                await asyncio.sleep(self.choice.random() * 0.004)
                for what in (what for each in held.values() for what in each):
                    self.alive[what] -= 1
                outcomes = [
                    (
                        run,
                        Outcome(Status.SUCCEEDED)
                        if self.is_draining
                        else self.choice.choice(OUTCOMES),
                    )
                    for run in claimed.runs
                ]
                written = await store.finish(connection, "default", outcomes)
                cancelled = [run for run in claimed.runs if run.id not in written]
                if cancelled:
                    await store.unlock(connection, "default", cancelled)
                idle = 0 if held or gated else idle + 1
                await asyncio.sleep(0 if held else 0.01)

    def operate(self) -> None:
        """Enqueue, cancel, retry, pause and resume, until the attack is over."""
        with database.connect(self.dsn) as db:
            while self.goes_on():
                job = self.choice.choice(list(self.jobs))
                action = self.choice.choice(
                    ["create"] * 12 + ["cancel", "retry", "pause", "resume", "resume"]
                )
                if action == "create":
                    create(db, job, self.choice.randrange(10**9))
                elif action in ("pause", "resume"):
                    (pauses.pause if action == "pause" else pauses.resume)(
                        db, "default", [job], "ann"
                    )
                else:
                    ids = "select id from yamlsched.job_runs where definition_id = %s order by random() limit 3"
                    act = actions.cancel if action == "cancel" else actions.retry
                    act(db, [row.id for row in db.execute(ids, [job]).fetchall()], "ann")


def create(db: Any, job: int, number: int) -> None:
    """Create a slot run of a job, or of one with overlap allow a run, in the queue of the job."""
    db.execute(
        "insert into yamlsched.job_runs "
        "(namespace, definition_id, job_type, run_at, max_attempts, priority, queue, exclusive, scheduled_for) "
        "select namespace, id, job_type, clock_timestamp(), 100, 1 + %s %% 3, queue, overlap <> 'allow', "
        "case when overlap <> 'allow' then 'epoch'::timestamptz + %s * interval '1 s' end "
        "from yamlsched.job_definitions where id = %s",
        [number, number, job],
    )


@pytest.mark.parametrize("seed", range(2))
def test_without_a_sweep_no_run_is_left_to_wait_and_no_limit_or_turn_is_exceeded(
    db: psycopg.Connection[Any], dsn: str, seed: int
) -> None:
    # given jobs with turns, with a limit, with both, and with neither, in two queues
    kinds = [("wait", None), ("allow", "pool"), ("wait", "pool"), ("allow", None)]
    jobs = {}
    for number in range(12):
        overlap, limit = kinds[number % 4]
        queue = "other" if number % 3 == 0 else "default"
        name = f"job_{number}"
        jobs[a_job(db, name, overlap=overlap, limit_name=limit, queue=queue, schedule=None)] = (
            name,
            limit,
        )
    db.execute("insert into yamlsched.gates values ('default', 'limit/pool', %s)", [MOST])
    attack = Attack(dsn, jobs, seed)

    # when many sessions work on them at once
    async def run() -> None:
        queues = ["default", "default", "default", "other"] * (SESSIONS // 4)
        operators = [asyncio.to_thread(attack.operate) for _ in range(4)]
        await asyncio.gather(
            *(attack.work(f"w{n}", queue) for n, queue in enumerate(queues)), *operators
        )
        with database.connect(dsn) as own:
            at_rest = own.execute(
                WRONGLY_BLOCKED, {"now": own.execute("select clock_timestamp()").fetchone()[0]}
            )
            attack.violations += [f"wrongly blocked: {one}" for one in at_rest.fetchall()]
            own.execute(
                "insert into yamlsched.namespaces values ('default') on conflict do nothing"
            )
            repaired = own.execute(
                "select yamlsched.repair('default', clock_timestamp())"
            ).fetchone()
            attack.violations += [f"repaired: {repaired}"] if repaired != (0,) else []
            pauses.resume(own, "default", list(jobs), "ann")
        attack.is_draining = True
        await asyncio.gather(*(attack.work(f"d{n}", queue) for n, queue in enumerate(queues)))

    asyncio.run(run())

    # then nothing was exceeded, nothing waits for nothing, and all of them have ended
    assert attack.violations == []
    assert db.execute("select status, blocked_on, count(*) from yamlsched.job_runs where finished_at is null "
                      "group by 1, 2").fetchall() == []  # fmt: skip
    assert attack.claimed > 500
