"""Handlers with effects, whose workers are killed at named points and at random instants."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psycopg

from yamlsched import Run
from yamlsched.store import effects
from yamlsched.store import runs as store

POINTS = (
    "before the claim of the key",
    "after the claim of the key",
    "inside the effect",
    "after the effect, before its result is stored",
    "before the finish",
    "before the commit",
    "after the commit, before the parent hears of it",
)
VICTIMS = ("child", "parent", "both", "parent, and the child lives on")
POLICIES: tuple[Literal["raise", "skip", "repeat"], ...] = ("raise", "skip", "repeat")
FAN_OUT = 3
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
PR_SET_PDEATHSIG = 1

_plan: tuple[Run, str | None, str] | None = None  # of the run that this child carries out


def story(run: Run, policy: Literal["raise", "skip", "repeat"], point: str | None, victim: str) -> None:
    """An effect at a real receiver, and then rows, a fan-out and the success in one transaction."""
    global _plan
    _plan = (run, point, victim)
    if point is None and not marked(run):
        post(f"/arm/{os.getpid()}/{os.getppid()}/{victim}")
    with run.once("post", in_doubt=policy) as effect:
        if effect.first:
            post(f"/effect/{run.id}", effect.key)
            effect.result = {"posted_in": run.attempt}
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue_many("leaf", [{"n": n} for n in range(FAN_OUT)], run_at=NEVER)
        run.result = {"effect": effect.result}
    die_at("after the commit, before the parent hears of it")


def shared_story(run: Run, number: int, policy: Literal["raise", "skip", "repeat"], victim: str) -> None:
    """An effect of the business, to which several runs come, each killed at a random instant."""
    if not marked(run):
        post(f"/arm/{os.getpid()}/{os.getppid()}/{victim}")
    with run.once(f"invoice {number}", in_doubt=policy, scope="namespace") as effect:
        if effect.first:
            post(f"/effect/{number}", effect.key)
            effect.result = {"by": run.id}


def post(path: str, key: str = "") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["RECEIVER_PORT"]), timeout=10)
    connection.request("POST", path, headers={"Idempotency-Key": key})
    die_at("inside the effect") if key else None
    assert connection.getresponse().status == 204
    connection.close()


def marked(run: Run) -> bool:
    """Say that the run's kill is under way; True if it was so before."""
    try:
        os.close(os.open(Path(os.environ["MARKS"]) / str(run.id), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


def die_at(point: str) -> None:
    """Kill whom the plan names, once per run, if it is now."""
    if _plan is None or _plan[1] != point or marked(_plan[0]):
        return
    run, _, victim = _plan
    parent = os.getppid()
    if victim == "parent, and the child lives on":  # as where the kernel cannot be asked to let it die
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
        os.kill(parent, signal.SIGKILL)
        if point != "before the commit":  # there it holds the row, and nobody else can own the run
            until_another_owns(run)
        return
    if victim in ("parent", "both"):
        os.kill(parent, signal.SIGKILL)
    if victim in ("child", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def until_another_owns(run: Run) -> None:
    """Sleep through the lease, as a process that was stopped does."""
    with psycopg.connect(run.claim.dsn, autocommit=True) as connection:
        while connection.execute(
            "select 1 from yamlsched.job_runs where id = %s and locked_by = %s and status = 'running'",
            [run.id, run.claim.locked_by],
        ).fetchone():
            time.sleep(0.005)


def around(module: Any, name: str, before: str | None, after: str | None) -> None:
    """Let the process die before or after a function of ``module``."""
    real: Callable[..., Any] = getattr(module, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        die_at(before) if before else None
        answer = real(*given, **named)
        die_at(after) if after else None
        return answer

    setattr(module, name, wrapped)


around(effects, "claim", "before the claim of the key", "after the claim of the key")
around(effects, "done", "after the effect, before its result is stored", None)
around(store, "succeed_in", "before the finish", "before the commit")


# what happens around the end of an attempt


def fails_after_its_commit(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    raise RuntimeError("too late")


def loses_the_answer_to_its_commit(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    run.committed = False  # as nobody knows when the connection breaks at that moment
    raise psycopg.OperationalError("server closed the connection unexpectedly")


async def doubts_in_a_task(run: Run) -> None:
    """Leave an effect in doubt, and come to it again in the next attempt, beside another task that fails."""

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
    """Hold the transaction open until the lease, as it was at the beginning, is over."""
    with run.transaction() as connection, psycopg.connect(run.claim.dsn, autocommit=True) as watch:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        query = "select locked_until, locked_until < clock_timestamp() from yamlsched.job_runs where id = %s"
        [(until, _)] = watch.execute(query, [run.id]).fetchall()
        while not watch.execute("select clock_timestamp() > %s", [until]).fetchone()[0]:  # type: ignore[index]
            assert watch.execute(query, [run.id]).fetchone()[1] is False  # type: ignore[index]
            time.sleep(0.02)
