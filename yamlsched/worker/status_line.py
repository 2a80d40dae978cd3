"""A status line for a terminal: the finished, running and due runs, and the rate."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import psycopg

from yamlsched.runs import Status
from yamlsched.store import runs as store
from yamlsched.worker import clock
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Session, Unanswered
from yamlsched.worker.stderr import NonBlockingStderr
from yamlsched.worker.worker import Worker

INTERVAL_SECONDS = 0.5
MAX_COUNTED = 10_000  # due runs


async def show(worker: Worker) -> None:
    """Keep the status line up to date, if stderr is a terminal, until the worker ends."""
    stderr = sys.stderr
    if not isinstance(stderr, NonBlockingStderr) or not stderr.isatty():
        return
    session = Session(Database(worker.workload.dsn), WORKER_SETTINGS)
    count_due = partial(store.due, namespace=worker.workload.namespace, most=MAX_COUNTED)
    finished_before, counted_at = 0, clock.now()
    rate = 0.0
    try:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                due = await session.run(count_due, INTERVAL_SECONDS)
            except (Unanswered, psycopg.Error):
                due = None
            finished, now = sum(worker.report.states.values()), clock.now()
            rate += 0.5 * ((finished - finished_before) / (now - counted_at) - rate)
            finished_before, counted_at = finished, now
            running = sum(lane.executor.running() for lane in worker.lanes)
            succeeded = worker.report.states[Status.SUCCEEDED]
            stderr.show(line(succeeded, finished, running, due, rate))
    finally:
        stderr.show("")
        await session.drop()


def line(succeeded: int, finished: int, running: int, due: int | None, rate: float) -> str:
    """Return the text of the status line.

    >>> line(118, 120, 4, 10_000, 36.4)
    '120 done (2 not succeeded), 4 running, over 10000 due, 36/s'
    """
    others = f" ({finished - succeeded} not succeeded)" if finished > succeeded else ""
    waiting = "" if due is None else f", {'over ' if due >= MAX_COUNTED else ''}{due} due"
    return f"{finished} done{others}, {running} running{waiting}, {rate:.0f}/s"
