"""What runs beside a worker: the status line of a terminal, systemd's notifications, reloads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from functools import partial

import psycopg

from yamlsched.runs.lifecycle import Status
from yamlsched.worker import claiming, clock
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Unanswered, WorkerSession
from yamlsched.worker.stderr import NonBlockingStderr
from yamlsched.worker.worker import Worker

INTERVAL_SECONDS = 0.5
MAX_COUNTED = 10_000  # due runs


async def show(worker: Worker) -> None:
    """Keep the status line up to date, if stderr is a terminal, until the worker ends."""
    stderr = sys.stderr
    if not isinstance(stderr, NonBlockingStderr) or not stderr.isatty():
        return
    session = WorkerSession(Database(worker.workload.dsn), WORKER_SETTINGS)
    count_due = partial(claiming.due, namespace=worker.workload.namespace, most=MAX_COUNTED)
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
            running = sum(executor.running() for executor in worker.queues.executors)
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


MAX_INTERVAL_SECONDS = 1.0
WATCH_INTERVAL_SECONDS = 0.5
UNWATCHED = ("__pycache__", "node_modules", "site-packages")
"""Folders whose files are not watched, besides hidden ones."""


async def reload_on_change(worker: Worker) -> None:
    """Reload as on SIGHUP when a file changes that the schedule or a handler may be in: for
    development.
    """
    before = versions(worker)
    while True:
        await asyncio.sleep(WATCH_INTERVAL_SECONDS)
        if (now := versions(worker)) != before:
            before = now
            os.kill(os.getpid(), signal.SIGHUP)


def versions(worker: Worker) -> dict[str, tuple[int, int]]:
    """Return the time and size of each file that may change what the worker does."""
    workload, found = worker.workload, {}
    for folder in {str(workload.file.parent), *workload.path}:
        for path, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name[0] != "." and name not in UNWATCHED]
            for name in names:
                if name.endswith((".py", ".yaml", ".yml")):
                    with contextlib.suppress(OSError):  # it was removed meanwhile
                        status = os.stat(place := os.path.join(path, name))
                        found[place] = (status.st_mtime_ns, status.st_size)
    return found


def notify(state: str) -> None:
    """Send ``state`` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
        try:
            handle.connect(f"\0{address[1:]}" if address[0] == "@" else address)
            handle.send(state.encode())
        except OSError:
            return


async def keep_notified(worker: Worker) -> None:
    """Report that the worker is ready, that its event loop runs (twice per WATCHDOG_USEC), and that
    it is stopping.
    """
    watchdog_interval = int(os.environ.get("WATCHDOG_USEC") or 0) / 2_000_000
    notify("READY=1")
    is_stopping = False
    try:
        while True:
            await asyncio.sleep(
                min(watchdog_interval or MAX_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS)
            )
            if watchdog_interval:
                notify("WATCHDOG=1")
            if worker.stopped_at is not None and not is_stopping:
                is_stopping = True
                notify("STOPPING=1")
    finally:
        if not is_stopping:
            notify("STOPPING=1")
