"""``tick --cron``: a tick whose output cron mails at the right time: nothing if all is well, a
death when it happens.

cron mails what its child has printed when nobody holds the child's output any more. So the tick
itself runs in a child of this process, in a session of its own, and this process reads what it
prints. When a run dies, it prints and exits, although other runs of the tick still execute: another
process reads the rest of the tick's output. The errors in it are mailed by a later tick, which
finds them in a file.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import sys
import syslog
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from yamlsched.cli import FINDINGS
from yamlsched.worker.permits import CRON_UNSENT, permit_folder

MAX_ERRORS, MAX_LINES = 1_000, 1_000
"""Lines that are mailed: the first errors, and the last of the others."""
POLL_SECONDS = 0.2
# for which a tick may end, or other runs may die, after a death: then there is one mail
DEATH_SECONDS = 1.0
LEVEL = re.compile(rb"[0-9-]{10}T[0-9:]{8}Z (INFO|WARNING|ERROR|DEBUG) +(\S+)")
PRIORITIES = {
    "error": syslog.LOG_ERR,
    "warning": syslog.LOG_WARNING,
    "info": syslog.LOG_INFO,
    "debug": syslog.LOG_DEBUG,
}
DEATH = "run.dead"


def run(file: Path, tick: Callable[[], int]) -> int:
    """Call ``tick`` for the schedule ``file`` in another process; return its exit code or, once a
    run has died, 1.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        for stream in (1, 2):
            os.dup2(writing, stream)
        os.close(writing)
        return tick()
    os.close(writing)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    return _Reader(reading, child, permit_folder(file)).follow()


class _Reader:
    """Reads what the tick in process ``child`` prints."""

    def __init__(self, reading: int, child: int, folder: Path) -> None:
        self._reading, self._child = reading, child
        self._unsent = folder / CRON_UNSENT
        self._rest = b""
        self._errors: list[bytes] = []
        self._lines: deque[bytes] = deque(maxlen=MAX_LINES)
        self._has_death = self._is_closed = False
        syslog.openlog("yamlsched", 0, syslog.LOG_CRON)

    def follow(self) -> int:
        earlier = self._take_unsent()
        code, until = None, math.inf
        while code is None and time.monotonic() < until:
            code = self._step()
            if self._has_death and until == math.inf:
                until = time.monotonic() + DEATH_SECONDS
        if code is None:
            return self._hand_over(earlier)
        if code != 0 or earlier:
            self._print(
                earlier,
                f"yamlsched tick: exit code {code}" if code else "yamlsched tick: all is well now",
            )
        return code or (FINDINGS if earlier else 0)

    def _step(self) -> int | None:
        """Read what there is; return the exit code of the tick once it has ended."""
        # what a handler has left running may hold the pipe: the end of the tick counts
        pid, status = os.waitpid(self._child, 0 if self._is_closed else os.WNOHANG)
        if not pid:
            self._read(POLL_SECONDS)
            return None
        while self._read(0):
            pass
        if self._rest:
            self._note(self._rest)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _read(self, seconds: float) -> bool:
        """Read what there is within ``seconds``; return whether there was anything."""
        if self._is_closed or not select.select([self._reading], [], [], seconds)[0]:
            return False
        piece = os.read(self._reading, 1 << 16)
        self._is_closed = not piece
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._note(line)
        return bool(piece)

    def _note(self, line: bytes) -> None:
        level, event = _level(line)
        syslog.syslog(
            PRIORITIES.get(level, syslog.LOG_INFO),
            line.decode("utf-8", "replace").replace("\0", ""),
        )
        self._has_death |= event == DEATH
        if level == "error" and len(self._errors) < MAX_ERRORS:
            self._errors.append(line)
        else:
            self._lines.append(line)

    def _hand_over(self, earlier: list[bytes]) -> int:
        """Let another process read the rest, and print what there is."""
        if os.fork():
            self._print(earlier, "yamlsched tick: a run died; others are still running")
            return FINDINGS
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        self._errors.clear()
        # the tick was a child of the process that has exited, so its end shows in its output, or in
        # its absence
        while self._read(POLL_SECONDS) or _is_alive(self._child):
            if self._errors:
                self._keep()
            if self._is_closed:
                break
        os._exit(0)

    def _keep(self) -> None:
        """Add errors to those that the next tick on this host mails."""
        with self._unsent.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in self._errors))
        self._errors.clear()

    def _take_unsent(self) -> list[bytes]:
        """Return the errors that an earlier tick has left, once: another tick may look at the same
        time.
        """
        taken = self._unsent.with_name(f"{CRON_UNSENT}-{os.getpid()}")
        try:
            self._unsent.rename(taken)
        except FileNotFoundError:
            return []
        try:
            return taken.read_bytes().splitlines()
        finally:
            taken.unlink()

    def _print(self, earlier: list[bytes], heading: str) -> None:
        parts = [heading.encode(), *self._errors]
        if earlier:
            parts += [b"", b"of earlier ticks:", *earlier]
        if self._lines:
            parts += [b"", *self._lines]
        sys.stdout.buffer.write(b"\n".join(parts) + b"\n")
        sys.stdout.flush()


def _level(line: bytes) -> tuple[str, str]:
    """Return the level and the event of a log line; "" for other output."""
    if match := LEVEL.match(line):
        return match[1].decode().lower(), match[2].decode("utf-8", "replace")
    if line.startswith(b"{"):
        try:
            content = json.loads(line)
            return str(content.get("level", "")), str(content.get("event", ""))
        except (ValueError, AttributeError):
            pass
    return "", ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
