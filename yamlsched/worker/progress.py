"""A progress line for a terminal: runs done, running and due, and runs per second."""

from __future__ import annotations

import asyncio
from functools import partial

import psycopg

from yamlsched.runs import Status
from yamlsched.store import runs as store
from yamlsched.worker import clock
from yamlsched.worker.sessions import Database, Session, Unanswered
from yamlsched.worker.worker import SESSION, Worker

REFRESH_INTERVAL_SECONDS = 0.5
MAX_COUNTED_RUNS = 10_000


async def show(worker: Worker) -> None:
    """Refresh the line until the worker ends, if stderr is a terminal."""
    if worker.lines is None or not worker.lines.isatty():
        return
    session = Session(Database(worker.work.dsn), SESSION)
    due: int | None = None
    before, at = 0, clock.now()
    rate = 0.0
    try:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_SECONDS)
            try:
                due = await session.run(
                    partial(store.due, namespace=worker.work.namespace, most=MAX_COUNTED_RUNS),
                    within=REFRESH_INTERVAL_SECONDS,
                )
            except (Unanswered, psycopg.Error):
                due = None
            done, now = sum(worker.report.states.values()), clock.now()
            rate += 0.5 * ((done - before) / (now - at) - rate)
            before, at = done, now
            worker.lines.show(line(worker.report.states[Status.SUCCEEDED], done, worker.pool.busy(), due, rate))
    finally:
        worker.lines.show("")
        await session.drop()


def line(succeeded: int, done: int, running: int, due: int | None, rate: float) -> str:
    """Return the text of the line.

    >>> line(118, 120, 4, 10_000, 36.4)
    '120 done (2 not succeeded), 4 running, over 10000 due, 36/s'
    """
    others = f" ({done - succeeded} not succeeded)" if done > succeeded else ""
    waiting = "" if due is None else f", {'over ' if due >= MAX_COUNTED_RUNS else ''}{due} due"
    return f"{done} done{others}, {running} running{waiting}, {rate:.0f}/s"
