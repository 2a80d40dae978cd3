"""Notifications to systemd, for a service of Type=notify."""

from __future__ import annotations

import asyncio
import os
import socket

from yamlsched.worker.worker import Worker


def notify(state: str) -> None:
    """Send ``state`` to the service manager; do nothing without one."""
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
    """Report that the worker is ready, that its event loop runs (every half of WATCHDOG_USEC), and that it stops."""
    interval_seconds = int(os.environ.get("WATCHDOG_USEC") or 0) / 2_000_000
    notify("READY=1")
    is_stopping = False
    try:
        while True:
            await asyncio.sleep(min(interval_seconds or 1.0, 1.0))
            if interval_seconds:
                notify("WATCHDOG=1")
            if worker.stop_at is not None and not is_stopping:
                is_stopping = True
                notify("STOPPING=1")
    finally:
        if not is_stopping:
            notify("STOPPING=1")
