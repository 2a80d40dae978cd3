"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept for failures."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from yamlsched.runs import ClaimedRun

KEPT = 65_536  # bytes
MAX_PASSED_ON_BYTES = 1 << 20  # of one attempt, with the name before each line: what is beyond is left out
LONGEST_LINE = 8_192  # bytes; a longer one is passed on in pieces
READ_AT_ONCE = 1 << 17  # bytes, so that a handler that prints gigabytes does not hold up the others
# what could move the cursor, colour the terminal or reverse the text: controls but the tab and the end of the line,
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
        self._room = MAX_PASSED_ON_BYTES
        self._left_out = 0

    def read(self, run: ClaimedRun | None, most: int = READ_AT_ONCE) -> None:
        """Read what is there; it belongs to ``run``."""
        if run is not None and run is not self.run:
            self.drop()
            self.run = run
        while most > 0:
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.is_closed = True
                return
            most -= len(piece)
            self.is_empty = False
            self._kept += piece
            del self._kept[:-KEPT]
            if self._room <= 0:
                self._left_out += len(piece)
                continue
            self._line += piece
            *lines, rest = self._line.split(b"\n")
            while len(rest) > LONGEST_LINE:
                lines.append(rest[:LONGEST_LINE])
                del rest[:LONGEST_LINE]
            self._line = rest
            self._pass_on(lines)

    def take(self) -> str:
        """Return the end of what the attempt printed, and start anew."""
        text = self._kept.decode("utf-8", "replace")
        self.drop()
        return text

    def drop(self) -> None:
        """Start anew, for another attempt."""
        if self.is_empty:
            return
        line, self._line = self._line, bytearray()
        if line:
            self._pass_on([line])
        if self._left_out:
            size, limit = f"{self._left_out / 2**20:.1f} MiB", f"{MAX_PASSED_ON_BYTES >> 20} MiB"
            self._write(f"{self._name}yamlsched: {size} of output left out, the limit for one attempt is {limit}\n")
        self._kept.clear()
        self._room, self._left_out, self.is_empty = MAX_PASSED_ON_BYTES, 0, True

    @property
    def _name(self) -> str:
        return f"[{self.run.job_type} {self.run.id}] " if self.run else "[?] "

    def _pass_on(self, lines: list[bytearray]) -> None:
        name = self._name
        for nth, line in enumerate(lines):
            self._room -= len(name) + len(line) + 1
            if self._room < 0:
                self._left_out += sum(map(len, lines[nth:])) + len(lines) - nth + len(self._line)
                self._line = bytearray()
                lines = lines[:nth]
                break
        if lines:
            text = b"\n".join([*lines, b""]).replace(b"\r\n", b"\n")[:-1].decode("utf-8", "replace")
            self._write(name + UNSAFE.sub(_escaped, text).replace("\n", f"\n{name}") + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
