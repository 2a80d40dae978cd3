"""Handlers whose runs succeed in a transaction of their own. Each attempt adds a row to ``written``."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psycopg

from yamlsched import Run

LEFT_OPEN: list[psycopg.Connection[Any]] = []
INSERT = "insert into written (run_id, attempt) values (%s, %s)"


def kill() -> None:
    """Kill the worker, and this process."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def handle(run: Run, what: str) -> Any:
    """Do ``what`` in the first attempt; later ones commit."""
    what = what if run.attempt == 1 else "commits"
    connection = psycopg.connect(os.environ["OWN_DSN"])
    connection.execute(INSERT, [run.id, run.attempt])
    if what == "fails_before":
        raise RuntimeError("on purpose")
    run.result = {"set": "before"}
    run.enqueue("nothing", {}, key=f"nothing:{run.id}")
    run.progress(1, 1)
    if what == "lost":
        with psycopg.connect(os.environ["OWN_DSN"], autocommit=True) as other:
            other.execute(
                "update yamlsched.job_runs set locked_by = 'another' where id = %s", [run.id]
            )
    run.succeed_in(connection)
    if what == "is_killed_before_commit":
        kill()
    if what == "leaves_it_open":
        LEFT_OPEN.append(connection)
        return None
    if what == "rolls_back":
        connection.rollback()
        return None
    connection.commit()
    if what == "is_killed_after_commit":
        kill()
    if what == "fails_after":
        raise RuntimeError("on purpose, after the commit")
    if what == "is_stopped_after":
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
    if what == "returns":
        return {"returned": "after"}
    return None


async def handle_async(run: Run) -> None:
    async with await psycopg.AsyncConnection.connect(os.environ["OWN_DSN"]) as connection:
        await connection.execute(INSERT, [run.id, run.attempt])
        run.result = {"set": "before"}
        await run.succeed_in(connection)
