"""``tick --cron``: a tick whose output cron mails at the right time: nothing if all is well, a
death when it happens.

cron mails what its child has printed when nobody holds the child's output any more. So the tick
itself runs in a child of this process, in a session of its own, and this process reads what it
prints. When a run dies, it prints and exits, although other runs of the tick still execute: another
process reads the rest of the tick's output. The errors in it are mailed by a later tick, which
finds them in a file.
"""

from __future__ import annotations

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
from yamlsched.service.host import CRON_UNSENT, permit_folder

MAX_ERRORS, MAX_LINES = 1_000, 1_000
"""Lines that are mailed: the first errors, and the last of the others."""
POLL_SECONDS = 0.2
# for which a tick may end, or other runs may die, after a death: then there is one mail
DEATH_SECONDS = 1.0
LOG_LINE = re.compile(
    rb"""[0-9-]{10}T[0-9:]{8}Z[ ](?P<level>[A-Z]+)[ ]+(?P<event>\S+)
    | \{"at":[ ]"[^"]*",[ ]"level":[ ]"(?P<json_level>\w+)",[ ]"event":[ ]"(?P<json_event>[^"]+)"
    """,
    re.VERBOSE,
)
PRIORITIES = {b"ERROR": syslog.LOG_ERR, b"WARNING": syslog.LOG_WARNING, b"DEBUG": syslog.LOG_DEBUG}
DEATH = b"run.dead"


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
        self._has_death = False
        syslog.openlog("yamlsched", 0, syslog.LOG_CRON)

    def follow(self) -> int:
        earlier = self._take_unsent()
        pid, status, until = 0, 0, math.inf
        # what a handler has left running may hold the pipe: the end of the tick counts
        while not pid and time.monotonic() < until:
            self._read(POLL_SECONDS)
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if self._has_death and until == math.inf:
                until = time.monotonic() + DEATH_SECONDS
        if not pid:
            return self._hand_over(earlier)
        self._read_rest()
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if code != 0 or earlier:
            self._print(earlier, f"exit code {code}" if code else "all is well now")
        return code or (FINDINGS if earlier else 0)

    def _read(self, seconds: float) -> bool:
        """Read what there is within ``seconds``; return whether there was anything."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return False
        piece = os.read(self._reading, 1 << 16)
        if not piece:
            time.sleep(seconds)  # the tick has closed its output, and is about to exit
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._note(line)
        return bool(piece)

    def _read_rest(self) -> None:
        while self._read(0):
            pass
        if self._rest:
            self._note(self._rest)

    def _note(self, line: bytes) -> None:
        match = LOG_LINE.match(line)
        level = (match["level"] or match["json_level"]).upper() if match else b""
        syslog.syslog(
            PRIORITIES.get(level, syslog.LOG_INFO),
            line.decode("utf-8", "replace").replace("\0", ""),
        )
        if match and DEATH in (match["event"], match["json_event"]):
            self._has_death = True
        if level == b"ERROR" and len(self._errors) < MAX_ERRORS:
            self._errors.append(line)
        else:
            self._lines.append(line)

    def _hand_over(self, earlier: list[bytes]) -> int:
        """Let another process read the rest, and print what there is."""
        if os.fork():
            self._print(earlier, "a run died; others are still running")
            return FINDINGS
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        self._errors.clear()
        # the tick is the child of a process that has exited: it cannot be waited for
        while _is_alive(self._child):
            self._read(POLL_SECONDS)
            self._keep()
        self._read_rest()
        self._keep()
        os._exit(0)

    def _keep(self) -> None:
        """Add errors to those that the next tick on this host mails."""
        if self._errors:
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
        lines = taken.read_bytes().splitlines()
        taken.unlink()
        return lines

    def _print(self, earlier: list[bytes], what: str) -> None:
        parts = [f"yamlsched tick: {what}".encode(), *self._errors]
        if earlier:
            parts += [b"", b"of earlier ticks:", *earlier]
        if self._lines:
            parts += [b"", *self._lines]
        sys.stdout.buffer.write(b"\n".join(parts) + b"\n")
        sys.stdout.flush()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
