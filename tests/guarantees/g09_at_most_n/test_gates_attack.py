"""Claims, ends, actions, edits and lost workers of many sessions at once: no gate has too many, no run is forgotten."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from support.claiming import WRONGLY_BLOCKED, set_limit
from support.rows import a_job
from yamlsched import db as database
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

pytestmark = pytest.mark.story
SECONDS, MIN_CLAIMED = 4.0, 500  # a busy machine takes longer
CAPACITIES = {"pool": 2, "tenants": 1, "edited": 3}
# of a statement that was cancelled, and of the one after it in its transaction
CUT = (psycopg.errors.QueryCanceled, psycopg.errors.InFailedSqlTransaction)
KINDS = [  # overlap, limit, queue
    *[("wait", None, "default"), ("allow", "pool", "default"), ("wait", "pool", "other")],
    *[("allow", "tenants", "default"), ("wait", "edited", "other"), ("allow", None, "default")],
]
OUTCOMES = [
    *[Outcome(Status.SUCCEEDED)] * 6,
    Outcome(Status.SUCCEEDED, result="{}"),
    Outcome(Status.QUEUED, refund=True),
    Outcome(Status.FAILED, delay=timedelta(0), error="x"),
    Outcome(Status.DEAD, error="x"),
]
ACTIONS = [*["create"] * 12, *["cancel", "retry"] * 2, "pause", "resume", "resume", "limit"]
CREATE = """
insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, priority, queue, exclusive,
                                scheduled_for, payload)
select namespace, id, job_type, clock_timestamp(), 100, 1 + %(n)s %% 3, queue, overlap <> 'allow',
       case when overlap <> 'allow' then 'epoch'::timestamptz + %(n)s * interval '1 s' end, %(payload)s
from yamlsched.job_definitions where id = %(job)s
"""


class Attack:
    """Workers of two queues, operators and upkeep, each a thread with a session. ``log`` is what the workers execute,
    and when: beside the database.
    """

    def __init__(self, dsn: str, jobs: list[int], seed: int) -> None:
        self.dsn, self.jobs, self.seed = dsn, jobs, seed
        self.log: list[tuple[float, int, str]] = []
        self.errors: list[BaseException] = []
        self.claimed = 0
        self.end = time.monotonic() + SECONDS

    def run(self, *sessions: Callable[[random.Random], None]) -> None:
        """Carry out ``sessions`` until the attack is over."""

        def carry_out(act: Callable[[random.Random], None], seed: int) -> None:
            try:
                act(random.Random(seed))
            except BaseException as error:
                self.errors.append(error)
                self.end = 0.0
                self.claimed = MIN_CLAIMED

        threads = [
            threading.Thread(target=carry_out, args=(act, 100 * self.seed + nth))
            for nth, act in enumerate(sessions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def goes_on(self) -> bool:
        return time.monotonic() < self.end or self.claimed < MIN_CLAIMED

    def worker(self, queue: str) -> Callable[[random.Random], None]:
        return lambda choice: asyncio.run(self._work(queue, choice))

    async def _work(self, queue: str, choice: random.Random) -> None:
        async with await connected(self.dsn) as connection:
            while self.goes_on():
                try:
                    runs = await claim(connection, queue, f"{choice.random()}")
                except CUT:
                    continue
                gates = [gate for run in runs for gate in gates_of(run)]
                self.claimed += len(runs)
                self.log += [(time.monotonic(), 1, gate) for gate in gates]
                await asyncio.sleep(choice.random() * 0.004)
                self.log += [(time.monotonic(), -1, gate) for gate in gates]
                if choice.random() < 0.02:
                    continue  # a worker that dies: `reclaim` ends what it had
                await finish(connection, [(run, choice.choice(OUTCOMES)) for run in runs])
                await asyncio.sleep(0 if runs else 0.01)

    def operator(self, choice: random.Random) -> None:
        with database.connect(self.dsn) as db:
            while self.goes_on():
                with suppress(*CUT):
                    self._act(db, choice)

    def _act(self, db: psycopg.Connection[Any], choice: random.Random) -> None:
        job = choice.choice(self.jobs)
        match choice.choice(ACTIONS):
            case "create":
                payload = Jsonb({"tenant": choice.randrange(3)})
                values = {"n": choice.randrange(10**9), "payload": payload, "job": job}
                db.execute(CREATE.encode(), values)
            case "pause":
                pauses.pause(db, "default", [job], "ann")
            case "resume":
                pauses.resume(db, "default", [job], "ann")
            case "limit":
                set_limit(db, "edited", choice.randint(1, CAPACITIES["edited"]))
            case action:
                sql = "select id from yamlsched.job_runs where definition_id = %s order by random() limit 3"
                ids = [row.id for row in db.execute(sql, [job]).fetchall()]
                (actions.cancel if action == "cancel" else actions.retry)(db, ids, "ann")

    def upkeep(self, sweeps: bool) -> Callable[[random.Random], None]:
        async def keep_up(choice: random.Random) -> None:
            async with await connected(self.dsn) as connection:
                while self.goes_on():
                    with suppress(*CUT):
                        await claiming.reclaim(connection, "default", is_complete=False)
                        if sweeps:
                            await claiming.sweep(connection, "default", at_once=True)
                    await asyncio.sleep(0.05)

        return lambda choice: asyncio.run(keep_up(choice))

    def cut(self, choice: random.Random) -> None:
        """Cancel the statements of workers and operators."""
        with database.connect(self.dsn) as db:
            while self.goes_on():
                db.execute(
                    "select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and pid <> pg_backend_pid() and state = 'active' order by random() limit 1"
                )
                time.sleep(0.01)

    def violations(self) -> list[str]:
        """Return where more runs executed at once than may, by the log."""
        alive: Counter[str] = Counter()
        found = []
        for at, change, gate in sorted(self.log):  # an end is before a start of the same time
            alive[gate] += change
            if alive[gate] > CAPACITIES.get(gate.split("/")[0], 1):
                found.append(f"{gate}: {alive[gate]} at {at}")
        return found


async def connected(dsn: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=namedtuple_row)


async def claim(
    connection: psycopg.AsyncConnection[Any], queue: str, token: str, now: datetime | None = None
) -> list[ClaimedRun]:
    claimed, gated = await claiming.claim(connection, "default", token, 5, now=now, queue=queue)
    await claiming.claim_gated(connection, "default", claimed, f"g{token}", gated, now=now)
    return claimed.runs


async def finish(
    connection: psycopg.AsyncConnection[Any], ends: list[tuple[ClaimedRun, Outcome]]
) -> None:
    """Write how runs have ended, until it is written."""
    while True:
        with suppress(*CUT):
            written = await store.finish(connection, "default", ends)
            if cancelled := [run for run, _ in ends if run.id not in written]:
                await store.unlock(connection, "default", cancelled)
            return


def gates_of(run: ClaimedRun) -> list[str]:
    """Return what only so many runs may have at once: the run itself, the turn of its job, and its limit."""
    overlap, limit, _ = KINDS[int(run.job_type.split("_")[1]) % len(KINDS)]
    return [
        f"run/{run.id}",
        *([f"turn/{run.job_type}"] if overlap == "wait" else []),
        *([f"{limit}/{run.payload}"] if limit == "tenants" else [limit] if limit else []),
    ]


async def drain(dsn: str, sweeps: bool) -> None:
    """Execute what is left, in rounds of all queues, until a round finds nothing: what waits then would wait for ever."""
    later = datetime.now().astimezone() + timedelta(hours=1)  # every lease has ended
    async with await connected(dsn) as connection:
        for number in range(10_000):
            later += timedelta(minutes=10)
            await claiming.reclaim(connection, "default", now=later)
            if sweeps:
                await claiming.sweep(connection, "default", now=later, at_once=True)
            runs = [
                run
                for queue in ("default", "other")
                for run in await claim(connection, queue, f"d{queue}{number}", later)
            ]
            if not runs:
                return
            await finish(connection, [(run, Outcome(Status.SUCCEEDED)) for run in runs])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "sweeps", [False, True], ids=["without a sweep", "with the sweep, and cut"]
)
def test_no_gate_has_too_many_and_no_run_is_left_to_wait(
    db: psycopg.Connection[Any], dsn: str, seed: int, sweeps: bool
) -> None:
    # given jobs with turns, with limits, with both, and with neither, in two queues
    print(f"seed {seed}")
    db.execute("insert into yamlsched.namespaces values ('default')")
    for name, number in CAPACITIES.items():
        db.execute(
            "insert into yamlsched.gates values ('default', %s, %s)", [f"limit/{name}", number]
        )
    jobs = [
        a_job(
            *(db, f"job_{number}"),
            overlap=overlap,
            limit_name=limit,
            schedule=None,
            queue=queue,
            limit_by=["tenant"] if limit == "tenants" else [],
            lease=timedelta(seconds=2),
        )
        for number, (overlap, limit, queue) in enumerate(KINDS * 2)
    ]
    attack = Attack(dsn, jobs, seed)

    # when many sessions work on them at once
    workers = [
        attack.worker(queue) for queue in ("default", "default", "default", "other", "other")
    ]
    cuts = [attack.cut] if sweeps else []
    attack.run(*workers, *[attack.operator] * 3, attack.upkeep(sweeps), *cuts)

    # then nothing was exceeded, nothing waits for nothing, and no permit is left
    assert attack.errors == []
    assert attack.violations() == []
    if not sweeps:
        now = db.execute("select clock_timestamp()").fetchone()[0]  # type: ignore[index]
        assert db.execute(WRONGLY_BLOCKED, {"now": now}).fetchall() == []
    assert db.execute("select yamlsched.repair('default', clock_timestamp())").fetchone() == (0,)
    # and all of them end
    pauses.resume(db, "default", jobs, "ann")
    asyncio.run(drain(dsn, sweeps))
    assert db.execute(
        "select status, queue, blocked_on, count(*) from yamlsched.job_runs where finished_at is null group by 1, 2, 3"
    ).fetchall() == []  # fmt: skip
    assert db.execute("select * from yamlsched.permits").fetchall() == []
    print(f"{attack.claimed} claimed")
