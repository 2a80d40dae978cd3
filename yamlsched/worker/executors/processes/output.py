"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept for failures."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from yamlsched.runs import ClaimedRun

MAX_KEPT_BYTES = 65_536
MAX_PASSED_ON_BYTES = 1 << 20  # of one attempt, including the name before each line
MAX_LINE_BYTES = 8_192  # a longer line is passed on in pieces
MAX_READ_BYTES = 1 << 17  # so that a handler that prints gigabytes does not block the others
# what could move the cursor, colour the terminal or reverse the text: controls except the tab and the end of the line,
# marks of direction, separators of lines, halves of surrogate pairs
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class Output:
    """The pipe of one child's stdout and stderr."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_closed = False
        self.run: ClaimedRun | None = None  # whose output was read last
        self.is_empty = True  # nothing was read since the last attempt ended
        self._kept = bytearray()
        self._line = bytearray()
        self._allowance = MAX_PASSED_ON_BYTES
        self._omitted_bytes = 0

    def read(self, run: ClaimedRun | None, limit: int = MAX_READ_BYTES) -> None:
        """Read about ``limit`` bytes, the output of ``run``; None: of the same run as before."""
        if run is not None and run is not self.run:
            self.drop()
            self.run = run
        while limit > 0:
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.is_closed = True
                return
            limit -= len(piece)
            self.is_empty = False
            self._kept += piece
            del self._kept[:-MAX_KEPT_BYTES]
            if self._allowance <= 0:
                self._omitted_bytes += len(piece)
                continue
            self._line += piece
            *lines, rest = self._line.split(b"\n")
            while len(rest) > MAX_LINE_BYTES:
                lines.append(rest[:MAX_LINE_BYTES])
                del rest[:MAX_LINE_BYTES]
            self._line = rest
            self._pass_on(lines)

    def take(self) -> str:
        """Return the end of what the attempt printed, and start again."""
        text = self._kept.decode("utf-8", "replace")
        self.drop()
        return text

    def drop(self) -> None:
        """Start again for another attempt."""
        if self.is_empty:
            return
        line, self._line = self._line, bytearray()
        if line:
            self._pass_on([line])
        if self._omitted_bytes:
            size, limit = f"{self._omitted_bytes / 2**20:.1f} MiB", f"{MAX_PASSED_ON_BYTES >> 20} MiB"
            self._write(f"{self._prefix}yamlsched: {size} of output left out, the limit for one attempt is {limit}\n")
        self._kept.clear()
        self._allowance, self._omitted_bytes, self.is_empty = MAX_PASSED_ON_BYTES, 0, True

    @property
    def _prefix(self) -> str:
        return f"[{self.run.job_type} {self.run.id}] " if self.run else "[?] "

    def _pass_on(self, lines: list[bytearray]) -> None:
        prefix = self._prefix
        for number, line in enumerate(lines):
            self._allowance -= len(prefix) + len(line) + 1
            if self._allowance < 0:
                self._omitted_bytes += sum(map(len, lines[number:])) + len(lines) - number + len(self._line)
                self._line = bytearray()
                lines = lines[:number]
                break
        if lines:
            text = b"\n".join([*lines, b""]).replace(b"\r\n", b"\n")[:-1].decode("utf-8", "replace")
            self._write(prefix + UNSAFE.sub(_escaped, text).replace("\n", f"\n{prefix}") + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
