"""What runs beside a worker: systemd's notifications, reloads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

from yamlsched.worker.worker import Worker

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
    it has stopped.
    """
    watchdog_interval = int(os.environ.get("WATCHDOG_USEC") or 0) / 2_000_000
    notify("READY=1")
    try:
        while True:
            await asyncio.sleep(watchdog_interval or MAX_INTERVAL_SECONDS)
            if watchdog_interval:
                notify("WATCHDOG=1")
    finally:
        notify("STOPPING=1")
