"""What a shared child sends to its parent: what attempts have printed, how they ended, and what was
not started.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from yamlsched.extras.shared.board import Batch
from yamlsched.extras.shared.loop import Executing
from yamlsched.worker.local import protocol
from yamlsched.worker.local.protocol import TaskEnd, frame

MAX_OUTPUT_BYTES = 1 << 18  # of one attempt, unsent: more is sent at once
MAX_UNSENT_BYTES = 1 << 22  # then what prints waits for the parent
FLUSH_SECONDS = 0.004  # for which the report of a success is held back
MAX_REPORTS = 200  # in one frame


class Reporter:
    """Collects what there is to report, and writes it to the pipe ``results`` on the event loop of
    this thread.
    """

    def __init__(
        self, results: int, loop: asyncio.AbstractEventLoop, on_failure: Callable[[OSError], object]
    ) -> None:
        # an attempt has left a task behind that does not end: the process is to be replaced
        self.is_leaking = False
        self._on_failure = on_failure
        self._results, self._loop, self._thread = results, loop, threading.get_ident()
        self._successes: list[tuple[int, float]] = []
        self._reports: list[TaskEnd] = []
        self._returned: list[int] = []
        self._printing: dict[int, Executing] = {}  # attempts with unsent output
        self._unsent = bytearray()
        self._is_flush_due = False
        self._flush_timer: Any = None

    def add_success(self, index: int, took: float) -> None:
        self._successes.append((index, took))

    def add(self, report: TaskEnd) -> None:
        self._reports.append(report)

    def give_back(self, indexes: list[int]) -> None:
        """Return tasks that have not started."""
        self._returned += indexes
        self.flush_soon()

    def print(self, executing: Executing, text: str) -> None:
        """Add ``text`` to what an attempt has printed."""
        content = text.encode("utf-8", "backslashreplace")
        executing.output.append(content)
        executing.output_bytes += len(content)
        self.on_output(executing)

    def on_output(self, executing: Executing) -> None:
        """Send what ``executing`` has printed soon; called in any thread."""
        self._printing[executing.index] = executing
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.flush_soon)
        elif executing.output_bytes > MAX_OUTPUT_BYTES:
            self._flush()
            if len(self._unsent) > MAX_UNSENT_BYTES:
                self._write_all()
        else:
            self.flush_soon()

    def flush_later(self) -> None:
        """Report successes together, if the process is busy."""
        if not self._is_flush_due and self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what there is to report. What an attempt has printed comes before its end."""
        self._is_flush_due = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        outputs, printing = [], self._printing
        while printing:
            index, executing = printing.popitem()
            content = b"".join([executing.output.popleft() for _ in range(len(executing.output))])
            executing.output_bytes = 0
            outputs.append((index, content))
        fan_outs = [
            report for report in self._reports if report.end is not None and report.end.enqueued
        ]
        plain = [
            report.encode()
            for report in self._reports
            if report.end is None or not report.end.enqueued
        ]
        first = Batch(
            outputs, self._successes, plain[:MAX_REPORTS], self._returned, self.is_leaking
        )
        self._unsent += frame(tuple(first))
        for start in range(MAX_REPORTS, len(plain), MAX_REPORTS):
            self._unsent += frame(tuple(Batch([], [], plain[start : start + MAX_REPORTS], [])))
        for report in fan_outs:
            self._unsent += protocol.bounded(
                report, lambda text: frame(tuple(Batch([], [], [text.encode()], [])))
            )
        self._successes, self._reports, self._returned = [], [], []
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._results, self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._results, self._write)
            return
        except OSError as error:
            self._on_failure(error)
        self._loop.remove_writer(self._results)

    def _write_all(self) -> None:
        """Let what prints faster than the parent reads wait for it."""
        poll = select.poll()
        poll.register(self._results, select.POLLOUT)
        while self._unsent:
            poll.poll()
            self._write()
