"""What handlers print: passed on to stderr line by line with the run's id; the end of it is kept
with the run.
"""

from __future__ import annotations

import contextlib
import re
import sys
from datetime import UTC, datetime

from yamlsched import log
from yamlsched import text as terminal
from yamlsched.runs.lifecycle import MAX_OUTPUT_BYTES, ClaimedRun

# with what is cut off after secrets are removed: one may start there
MAX_KEPT_BYTES = MAX_OUTPUT_BYTES + 4_096
MAX_TAIL_BYTES = 8_192 + 4_096  # likewise, while the attempt is running
MAX_PASSED_ON_BYTES = 1 << 20  # of one attempt, including the name before each line
MAX_LINE_BYTES = 8_192  # a longer line is passed on as far as it was read
# what could move the cursor, colour the terminal or reverse the text: controls except the tab and
# the end of the line, marks of direction, separators of lines, halves of surrogate pairs
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


class AttemptOutput:
    """What the attempt of ``run`` prints; None: what belongs to no attempt."""

    def __init__(self, run: ClaimedRun | None) -> None:
        self._run = run
        self._kept = bytearray()
        self._line = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._kept.clear()
        self._forgotten_bytes = 0  # before what is kept
        self._allowance = MAX_PASSED_ON_BYTES
        self._omitted_bytes = 0  # not passed on

    def add(self, content: bytes) -> None:
        """Keep and pass on ``content``."""
        self._keep(content)
        if self._allowance <= 0:
            self._omitted_bytes += len(self._line) + len(content)
            self._line = bytearray()
            return
        self._line += content
        if b"\r" in self._line:
            self._line = visible(self._line)
        *lines, self._line = self._line.split(b"\n")
        self._pass_on(lines, b"\n")
        if len(self._line) > MAX_LINE_BYTES:
            self.end_line()

    def _keep(self, content: bytes) -> None:
        start = self._kept.rfind(b"\n") + 1
        self._kept += content
        if b"\r" in content:
            self._kept[start:] = visible(self._kept[start:])
        self._forgotten_bytes += max(0, len(self._kept) - MAX_KEPT_BYTES)
        del self._kept[:-MAX_KEPT_BYTES]

    def tail(self) -> tuple[bytes, int]:
        """Return the end of what was printed, and how many bytes that was."""
        return bytes(self._kept[-MAX_TAIL_BYTES:]), self._forgotten_bytes + len(self._kept)

    def take(self, is_kept: bool) -> tuple[str, int]:
        """Return the end of what the attempt printed, if it is kept, and the bytes before it; start
        again.
        """
        self.end_line()
        if self._omitted_bytes:
            self._report_omission(is_kept)
        text = self._kept.decode("utf-8", "replace") if is_kept else ""
        forgotten_bytes = self._forgotten_bytes
        self._reset()
        return text, forgotten_bytes

    def end_line(self) -> None:
        """Pass on what was printed of the last line: what is printed next is of another run."""
        line, self._line = self._line, bytearray()
        if line:
            self._pass_on([line], b"")

    def _report_omission(self, is_kept: bool) -> None:
        where = ""
        if is_kept and self._run:
            where = f". To see the end: yamlsched show {self._run.id} --output"
        text = (
            f"yamlsched: {terminal.show_bytes(self._omitted_bytes)} of output left out here, the"
            f" limit for one attempt is {MAX_PASSED_ON_BYTES >> 20} MiB{where}"
        )
        self._write([text])

    @property
    def _prefix(self) -> str:
        return f"[{self._run.job_type} {self._run.id}] " if self._run else "[?] "

    def _pass_on(self, lines: list[bytearray], end: bytes) -> None:
        """Pass on ``lines``, as far as the limit allows; ``end`` is what followed each when it was
        printed.
        """
        prefix = self._prefix
        for number, line in enumerate(lines):
            self._allowance -= len(prefix) + len(line) + 1
            if self._allowance < 0:
                self._omitted_bytes += len(end.join([*lines[number:], self._line]))
                self._line = bytearray()
                lines = lines[:number]
                break
        if lines:
            text = b"\n".join([*lines, b""]).replace(b"\r\n", b"\n")[:-1].decode("utf-8", "replace")
            self._write(log.masked(text).split("\n"))

    def _write(self, lines: list[str]) -> None:
        if log.is_json():
            run = {"job": self._run.job_type, "run": self._run.id} if self._run else {}
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


def visible(content: bytes | bytearray) -> bytearray:
    """Return ``content`` as a terminal shows it: of each line that writes over itself, such as a
    progress bar, the end.

    >>> visible(b"1%\\r2%\\r100%\\r\\ndone\\n3%\\r")
    bytearray(b'100%\\r\\ndone\\n3%\\r')
    """
    return bytearray(b"\n").join(
        line[line.rstrip(b"\r").rfind(b"\r") + 1 :] for line in content.split(b"\n")
    )


def escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
