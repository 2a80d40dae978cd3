"""Notifications for systemd, for a service of Type=notify."""

from __future__ import annotations

import asyncio
import os
import socket

from yamlsched.worker.worker import Worker

MAX_INTERVAL_SECONDS = 1.0


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
    """Report that the worker is ready, that its event loop runs (twice per WATCHDOG_USEC), and that it is stopping."""
    watchdog_interval = int(os.environ.get("WATCHDOG_USEC") or 0) / 2_000_000
    notify("READY=1")
    is_stopping = False
    try:
        while True:
            await asyncio.sleep(min(watchdog_interval or MAX_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS))
            if watchdog_interval:
                notify("WATCHDOG=1")
            if worker.stopped_at is not None and not is_stopping:
                is_stopping = True
                notify("STOPPING=1")
    finally:
        if not is_stopping:
            notify("STOPPING=1")
