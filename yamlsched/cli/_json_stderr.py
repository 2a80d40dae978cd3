"""With ``--log-format json``: every line on stderr is a JSON object, whoever writes it.

What yamlsched logs is JSON already. Other code in its processes writes to descriptor 2 as well: the interpreter when it
crashes, faulthandler, C libraries, warnings. So descriptor 2 becomes a pipe to a process that wraps such lines, and is
the only one that writes to the real stderr. It needs no thread, which a worker that forks must not have.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from yamlsched import log

MAX_LINE_BYTES = 8_192
"""A longer line that is no JSON is wrapped in pieces. What yamlsched logs is never cut."""
MAX_EVENT_BYTES = 1 << 20
IDLE_SECONDS = 0.5
"""After which half a line is wrapped as it is: a prompt, or the last words of a process that hangs."""
CLOSE_TIMEOUT_SECONDS = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
STDERR = 2


def start() -> None:
    """Have what is written to descriptor 2 from now on wrapped, up to the end of this process."""
    try:
        if sys.stderr.fileno() != STDERR:
            return  # a test has replaced it
    except (AttributeError, OSError, ValueError):
        return
    sys.stderr.flush()
    reading, writing = os.pipe()
    own_id, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            os.close(writing)
            _relay(reading, own_id)
        finally:
            os._exit(0)
    os.close(reading)
    os.dup2(writing, STDERR)
    os.close(writing)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    atexit.register(_finish, own_id, pid)  # the first that is registered is the last that is called


def _finish(own_id: int, pid: int) -> None:
    """Let the process that wraps write the rest, and exit."""
    if os.getpid() != own_id:
        return  # in a fork
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, STDERR)
    deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.001)


def _relay(reading: int, parent: int) -> None:
    """Write what comes from ``reading`` to stderr, until no process can write there any more."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # sent to all processes at once: the others still have something to say
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    wrapper, poll = Wrapper(), select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        if not poll.poll(IDLE_SECONDS * 1000):
            _write(wrapper.flush())
            if os.getppid() != parent:
                return  # a process that was left behind holds the pipe
            continue
        piece = os.read(reading, 1 << 16)
        if not piece:
            _write(wrapper.flush())
            return
        _write(wrapper.feed(piece))


def _write(lines: Iterator[bytes]) -> None:
    unwritten = memoryview(b"".join(lines))
    with contextlib.suppress(OSError):  # it has no reader any more: a run is worth more than its log line
        while unwritten:
            unwritten = unwritten[os.write(STDERR, unwritten) :]


class Wrapper:
    """Turns what processes write into lines of JSON."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that ``piece`` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._wrap(line)
        start = self._rest.find(log.JSON_START)
        if len(self._rest) > (MAX_LINE_BYTES if start < 0 else MAX_EVENT_BYTES):
            yield from self.flush()

    def flush(self) -> Iterator[bytes]:
        """Yield the line that has not ended."""
        line, self._rest = self._rest, b""
        if line:
            yield from self._wrap(line)

    def _wrap(self, line: bytes) -> Iterator[bytes]:
        """Yield ``line`` as it is if it is an event; else each piece of it as an event.

        Other code may have written half a line before ours.
        """
        start = line.find(log.JSON_START)
        while start >= 0 and not log.is_event(line[start:]):
            start = line.find(log.JSON_START, start + 1)
        foreign, event = (line, b"") if start < 0 else (line[:start], line[start:])
        for at in range(0, len(foreign), MAX_LINE_BYTES):
            text = foreign[at : at + MAX_LINE_BYTES].decode("utf-8", "backslashreplace").rstrip("\r")
            if text.strip():
                yield (
                    log.format_line("warning", "stderr.line", {"line": text}, datetime.now(UTC), True).encode() + b"\n"
                )
        if event:
            yield event + b"\n"
