"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept for failures."""

from __future__ import annotations

import os
import sys

from yamlsched.runs import Claimed

KEPT = 65_536  # bytes
LONGEST_LINE = 8_192  # bytes; a longer one is passed on in pieces
READ_AT_ONCE = 1 << 20  # so that a handler that prints gigabytes does not hold up the others


class Output:
    """The pipe of one child's stdout and stderr."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_closed = False
        self._kept = bytearray()
        self._line = bytearray()
        self._run: Claimed | None = None

    def read(self, run: Claimed | None) -> None:
        """Read what is there; it belongs to ``run``."""
        if run is not None:
            self._run = run
        left = READ_AT_ONCE
        while left > 0:
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.is_closed = True
                return
            left -= len(piece)
            self._kept += piece
            del self._kept[:-KEPT]
            self._line += piece
            *lines, rest = self._line.split(b"\n")
            while len(rest) > LONGEST_LINE:
                lines.append(rest[:LONGEST_LINE])
                del rest[:LONGEST_LINE]
            self._line = rest
            for line in lines:
                self._pass_on(line)

    def take(self) -> str:
        """Return the end of what the run printed, and begin anew."""
        text = self._kept.decode("utf-8", "replace")
        self.drop()
        return text

    def drop(self) -> str:
        """Begin anew."""
        if self._line:
            self._pass_on(self._line)
        self._line = bytearray()
        self._kept.clear()
        return ""

    def close(self) -> None:
        """Pass on what is left."""
        self.drop()

    def _pass_on(self, line: bytearray) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        safe = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
        name = f"{self._run.job_type} {self._run.id}" if self._run else "?"
        try:
            print(f"[{name}] {safe}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return
