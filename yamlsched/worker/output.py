"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept for failures."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from yamlsched.runs import Claimed

KEPT = 65_536  # bytes
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
        self._kept = bytearray()
        self._line = bytearray()
        self._run: Claimed | None = None

    def read(self, run: Claimed | None, most: int = READ_AT_ONCE) -> None:
        """Read what is there; it belongs to ``run``."""
        if run is not None:
            self._run = run
        while most > 0:
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.is_closed = True
                return
            most -= len(piece)
            self._kept += piece
            del self._kept[:-KEPT]
            self._line += piece
            *lines, rest = self._line.split(b"\n")
            while len(rest) > LONGEST_LINE:
                lines.append(rest[:LONGEST_LINE])
                del rest[:LONGEST_LINE]
            self._line = rest
            self._pass_on(lines)

    def take(self) -> str:
        """Return the end of what the run printed, and begin anew."""
        text = self._kept.decode("utf-8", "replace")
        self.drop()
        return text

    def drop(self) -> None:
        """Begin anew."""
        if self._line:
            self._pass_on([self._line])
        self._line = bytearray()
        self._kept.clear()

    def _pass_on(self, lines: list[bytearray]) -> None:
        if not lines:
            return
        name = f"[{self._run.job_type} {self._run.id}] " if self._run else "[?] "
        text = b"\n".join(lines).replace(b"\r\n", b"\n").decode("utf-8", "replace")
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(name + UNSAFE.sub(_escaped, text).replace("\n", f"\n{name}") + "\n")


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
