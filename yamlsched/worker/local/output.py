"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept
with the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from yamlsched import log
from yamlsched import text as terminal
from yamlsched.runs.lifecycle import MAX_OUTPUT_BYTES, ClaimedRun
from yamlsched.worker.stderr import NonBlockingStderr

# with what is cut off after secrets are removed: one may start there
MAX_KEPT_BYTES = MAX_OUTPUT_BYTES + 4_096
MAX_TAIL_BYTES = 8_192 + 4_096  # likewise, while the attempt is running
MAX_PASSED_ON_BYTES = 1 << 20  # of one attempt, including the name before each line
MAX_LINE_BYTES = 8_192  # a longer line is passed on in pieces
PIPE_BYTES = 1 << 16  # what a pipe holds, unless a handler enlarges it
MAX_WAIT_SECONDS = 1.0  # for which an attempt waits, in total, for the reader of our stderr
WAIT_SECONDS = 0.02  # at a time
# what could move the cursor, colour the terminal or reverse the text: controls except the tab and
# the end of the line, marks of direction, separators of lines, halves of surrogate pairs
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


class OutputPipe:
    """The pipe of one child's stdout and stderr."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_closed = False
        self.run: ClaimedRun | None = None  # whose output was read last
        self.is_empty = True  # nothing was read since the last attempt ended
        self._kept = bytearray()
        self._line = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._kept.clear()
        self._forgotten_bytes = 0  # before what is kept
        self._allowance = MAX_PASSED_ON_BYTES
        self._waited_seconds = 0.0
        self._omitted_bytes = self._omitted_lines = 0  # not passed on
        self.is_empty = True

    def read(self) -> bytes:
        """Read all that the pipe holds, and not more, so that a handler that prints gigabytes does
        not block others.
        """
        content = self._read(PIPE_BYTES)
        if len(content) == PIPE_BYTES:
            content += self._read(_pipe_size(self.descriptor))
        return content

    def _read(self, size: int) -> bytes:
        try:
            content = os.read(self.descriptor, size)
        except BlockingIOError:
            return b""
        self.is_closed = not content
        return content

    def add(self, run: ClaimedRun | None, content: bytes) -> None:
        """Keep and pass on ``content``, printed by ``run``; None: by the same run as before."""
        if run is not None and run is not self.run:
            self.take(is_kept=False)
            self.run = run
        if not content:
            return
        self.is_empty = False
        self._keep(content)
        if self._allowance <= 0 or (_is_full() and not self._may_wait()):
            self._omit(self._line + content)
            self._line = bytearray()
            return
        self._line += content
        if b"\r" in self._line:
            self._line = visible(self._line)
        *lines, self._line = self._line.split(b"\n")
        self._pass_on(lines, b"\n")
        self._pass_on(list(self._cut_pieces()), b"")

    def _cut_pieces(self) -> Iterator[bytearray]:
        """Yield what is too long of the line that has not ended."""
        while len(self._line) > MAX_LINE_BYTES:
            end = MAX_LINE_BYTES
            # not inside a character
            while end > MAX_LINE_BYTES - 3 and self._line[end] & 0xC0 == 0x80:
                end -= 1
            yield self._line[:end]
            del self._line[:end]

    def _keep(self, content: bytes) -> None:
        start = self._kept.rfind(b"\n") + 1
        self._kept += content
        if b"\r" in content:
            self._kept[start:] = visible(self._kept[start:])
        self._forgotten_bytes += max(0, len(self._kept) - MAX_KEPT_BYTES)
        del self._kept[:-MAX_KEPT_BYTES]

    def tail(self, run: ClaimedRun) -> tuple[bytes, int]:
        """Return the end of what ``run`` has printed, if it is still here, and how many bytes that
        was.
        """
        if run is not self.run:
            return b"", 0
        return bytes(self._kept[-MAX_TAIL_BYTES:]), self._forgotten_bytes + len(self._kept)

    def wait_seconds(self) -> float:
        """Return for how long not to read on, because our stderr is not read as quickly as this run
        prints.
        """
        if self.is_empty or self._allowance <= 0 or not _is_full() or not self._may_wait():
            return 0.0
        self._waited_seconds += WAIT_SECONDS
        return WAIT_SECONDS

    def _may_wait(self) -> bool:
        return self._waited_seconds < MAX_WAIT_SECONDS and not _is_stuck()

    def take(self, is_kept: bool) -> tuple[str, int]:
        """Return the end of what the attempt printed, if it is kept, and the bytes before it; start
        again.
        """
        if self.is_empty:
            return "", 0
        line, self._line = self._line, bytearray()
        if line:
            self._pass_on([line], b"")
        if self._omitted_bytes:
            self._report_omission(is_kept)
        text = self._kept.decode("utf-8", "replace") if is_kept else ""
        forgotten_bytes = self._forgotten_bytes
        self._reset()
        return text, forgotten_bytes

    def _report_omission(self, is_kept: bool) -> None:
        lines = f" ({self._omitted_lines:,} lines)" if self._omitted_lines else ""
        why = f"the limit for one attempt is {MAX_PASSED_ON_BYTES >> 20} MiB"
        if self._allowance > 0:
            why = "the worker's stderr is not read fast enough"
        where = (
            f". The end of it: yamlsched show {self.run.id} --output"
            if is_kept and self.run
            else ""
        )
        text = (
            f"yamlsched: {terminal.show_bytes(self._omitted_bytes)} of output{lines} left out here,"
            f" {why}{where}"
        )
        self._write([text])

    @property
    def _prefix(self) -> str:
        return f"[{self.run.job_type} {self.run.id}] " if self.run else "[?] "

    def _omit(self, content: bytes | bytearray) -> None:
        self._omitted_bytes += len(content)
        self._omitted_lines += content.count(b"\n")

    def _pass_on(self, lines: list[bytearray], end: bytes) -> None:
        """Pass on ``lines``, as far as the limit allows; ``end`` is what followed each when it was
        printed.
        """
        prefix = self._prefix
        for number, line in enumerate(lines):
            self._allowance -= len(prefix) + len(line) + 1
            if self._allowance < 0:
                self._omit(end.join([*lines[number:], self._line]))
                self._line = bytearray()
                lines = lines[:number]
                break
        if lines:
            text = b"\n".join([*lines, b""]).replace(b"\r\n", b"\n")[:-1].decode("utf-8", "replace")
            self._write(log.masked(text).split("\n"))

    def _write(self, lines: list[str]) -> None:
        if log.is_json():
            run = {"job": self.run.job_type, "run": self.run.id} if self.run else {}
            now = datetime.now(UTC)
            lines = [
                log.format_line("info", "run.output", {**run, "line": line}, now, as_json=True)
                for line in lines
            ]
            text = "\n".join([*lines, ""])
        else:
            prefix = self._prefix
            text = (
                prefix + UNSAFE.sub(escaped, "\n".join(lines)).replace("\n", f"\n{prefix}") + "\n"
            )
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)


def _pipe_size(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):
        return PIPE_BYTES  # not Linux


def visible(content: bytes | bytearray) -> bytearray:
    """Return ``content`` as a terminal shows it: of each line that writes over itself, such as a
    progress bar, the end.

    >>> visible(b"1%\\r2%\\r100%\\r\\ndone\\n3%\\r")
    bytearray(b'100%\\r\\ndone\\n3%\\r')
    """
    return bytearray(b"\n").join(
        line[line.rstrip(b"\r").rfind(b"\r") + 1 :] for line in content.split(b"\n")
    )


def _is_full() -> bool:
    return isinstance(sys.stderr, NonBlockingStderr) and sys.stderr.is_full


def _is_stuck() -> bool:
    return isinstance(sys.stderr, NonBlockingStderr) and sys.stderr.is_stuck


def escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
