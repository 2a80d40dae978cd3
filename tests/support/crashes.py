"""Handlers with effects, whose workers are killed at named points and at random instants."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psycopg

from yamlsched import Run
from yamlsched.runs import effects
from yamlsched.runs import own_transaction as store

POINTS = (
    "before the claim of the key",
    "after the claim of the key",
    "inside the effect",
    "after the effect, before its result is stored",
    "before the finish",
    "before the commit",
    "after the commit, before the parent knows",
)
VICTIMS = ("child", "parent", "both", "parent, but not the child")
Policy = Literal["raise", "skip", "repeat"]
POLICIES: tuple[Policy, ...] = ("raise", "skip", "repeat")
FAN_OUT = 3
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
PR_SET_PDEATHSIG = 1

_plan: tuple[Run, str | None, str] | None = None  # of the run that this child executes


def effect_and_transaction(run: Run, policy: Policy, point: str | None, victim: str) -> None:
    """Cause an effect at a real receiver, then write rows, a fan-out and the success in one transaction."""
    global _plan
    _plan = (run, point, victim)
    if point is None and not mark(run):
        post(f"/arm/{os.getpid()}/{os.getppid()}/{victim}")
    with run.once("post", in_doubt=policy) as effect:
        if effect.first:
            post(f"/effect/{run.id}", effect.key)
            effect.result = {"posted_in": run.attempt}
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue_many("leaf", [{"n": n} for n in range(FAN_OUT)], run_at=NEVER)
        run.result = {"effect": effect.result}
    die_at("after the commit, before the parent knows")


def shared_effect(run: Run, number: int, policy: Policy, victim: str) -> None:
    """Cause an effect with a business key, which several runs try, each killed at a random instant."""
    if not mark(run):
        post(f"/arm/{os.getpid()}/{os.getppid()}/{victim}")
    with run.once(f"invoice {number}", in_doubt=policy, scope="namespace") as effect:
        if effect.first:
            post(f"/effect/{number}", effect.key)
            effect.result = {"by": run.id}


def post(path: str, key: str = "") -> None:
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(os.environ["RECEIVER_PORT"]), timeout=10
    )
    connection.request("POST", path, headers={"Idempotency-Key": key})
    die_at("inside the effect") if key else None
    assert connection.getresponse().status == 204
    connection.close()


def mark(run: Run) -> bool:
    """Record that this run has had its kill; return whether that was recorded before."""
    try:
        os.close(os.open(Path(os.environ["MARKS"]) / str(run.id), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


def die_at(point: str) -> None:
    """Kill the victim of the plan if this is its point, once per run."""
    if _plan is None or _plan[1] != point or mark(_plan[0]):
        return
    run, _, victim = _plan
    parent = os.getppid()
    # as on a system where a child does not die with its parent
    if victim == "parent, but not the child":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
        os.kill(parent, signal.SIGKILL)
        # there it holds a lock on the row, and no other worker can claim the run
        if point != "before the commit":
            until_another_owns(run)
        return
    if victim in ("parent", "both"):
        os.kill(parent, signal.SIGKILL)
    if victim in ("child", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def until_another_owns(run: Run) -> None:
    """Wait until another worker has claimed the run, as a process that was stopped does."""
    with psycopg.connect(run.backend.dsn, autocommit=True) as connection:
        while connection.execute(
            "select 1 from yamlsched.job_runs where id = %s and locked_by = %s and status = 'running'",
            [run.id, run.backend.locked_by],
        ).fetchone():
            time.sleep(0.005)


def die_around_success() -> None:
    """Make the process die before or after the statement that writes a run's success."""
    real = store.succeed_in

    async def succeed_in(*args: Any) -> bool:
        die_at("before the finish")
        answer = await real(*args)
        die_at("before the commit")
        return answer

    store.succeed_in = succeed_in


def die_before_result() -> None:
    """Make the process die before the statement that stores the result of an effect."""
    real = effects.write

    def write(connection: Any, statement: Any, *args: Any) -> bool:
        if statement == "mark_done":
            die_at("after the effect, before its result is stored")
        return real(connection, statement, *args)

    effects.write = write


def die_around_claim() -> None:
    """Make the process die before or after the statement that claims the key of an effect."""
    real = effects.claim

    def claim(*args: Any) -> Any:
        die_at("before the claim of the key")
        answer = real(*args)
        die_at("after the claim of the key")
        return answer

    effects.claim = claim


die_around_claim()
die_before_result()
die_around_success()


# -- the end of an attempt


def fails_after_its_commit(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    raise RuntimeError("too late")


def loses_the_answer_to_its_commit(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    run.committed = False  # unknown, as when the connection breaks at that moment
    raise psycopg.OperationalError("server closed the connection unexpectedly")


async def effect_in_doubt_in_a_task(run: Run) -> None:
    """Leave an effect in doubt beside another task that fails; the next attempt reaches the effect again."""

    async def task() -> None:
        with run.once("post", in_doubt="raise"):
            raise TimeoutError

    async def other() -> None:
        raise ValueError

    async with asyncio.TaskGroup() as group:
        group.create_task(other())
        group.create_task(task())


def enqueues_an_unknown_job(run: Run) -> None:
    run.enqueue_many("leaf", [{}, {}])
    run.enqueue("leef")


def outlasts_its_lease(run: Run) -> None:
    """Hold the transaction open past the end of the lease that the run had at its start."""
    with (
        run.transaction() as connection,
        psycopg.connect(run.backend.dsn, autocommit=True) as watch,
    ):
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        query = "select locked_until, locked_until < clock_timestamp() from yamlsched.job_runs where id = %s"
        [(until, _)] = watch.execute(query, [run.id]).fetchall()
        while not watch.execute("select clock_timestamp() > %s", [until]).fetchone()[0]:  # type: ignore[index]
            assert watch.execute(query, [run.id]).fetchone()[1] is False  # type: ignore[index]
            time.sleep(0.02)
