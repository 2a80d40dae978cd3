"""What systemd wants to hear from a service of Type=notify, where it listens."""

from __future__ import annotations

import asyncio
import os
import socket

from yamlsched.worker.worker import Worker


def notify(state: str) -> None:
    """Tell the service manager ``state``, if there is one that listens."""
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
    """Say when the worker is ready, that its event loop turns (every half of WATCHDOG_USEC), and when it stops."""
    every = int(os.environ.get("WATCHDOG_USEC") or 0) / 2_000_000
    notify("READY=1")
    is_stopping = False
    try:
        while True:
            await asyncio.sleep(min(every or 1.0, 1.0))
            if every:
                notify("WATCHDOG=1")
            if worker.stop_at is not None and not is_stopping:
                is_stopping = True
                notify("STOPPING=1")
    finally:
        if not is_stopping:
            notify("STOPPING=1")
