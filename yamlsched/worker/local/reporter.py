"""What a child of coroutines sends to its parent: what attempts have printed, how they ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from yamlsched.worker.local import protocol
from yamlsched.worker.local.loop import Executing
from yamlsched.worker.local.protocol import Success, TaskEnd

MAX_OUTPUT_BYTES = 1 << 18  # of one attempt, unsent: more is sent at once
FLUSH_SECONDS = 0.004  # for which reports are collected


class Reporter:
    """Collects what there is to report, and writes it to the pipe ``results`` on the event loop of
    this thread. While the parent does not read, nothing executes.
    """

    def __init__(
        self, results: int, loop: asyncio.AbstractEventLoop, on_failure: Callable[[OSError], object]
    ) -> None:
        self._results, self._loop, self._on_failure = results, loop, on_failure
        self._thread = threading.get_ident()
        self._must_retire = False
        self._successes: list[Success] = []
        self._reports: list[TaskEnd] = []
        self._printing: dict[int, Executing] = {}  # attempts with unsent output
        self._flush_timer: asyncio.TimerHandle | None = None

    def add_success(self, index: int, took: float) -> None:
        self._successes.append((index, took, None))
        self._flush_soon()

    def add(self, report: TaskEnd) -> None:
        self._reports.append(report)
        self._flush_soon()

    def retire(self) -> None:
        """Have this process replaced."""
        self._must_retire = True
        self._flush_soon()

    def on_output(self, executing: Executing) -> None:
        """Send what ``executing`` has printed soon; called in any thread."""
        self._printing[executing.index] = executing
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._flush_soon)
        elif executing.output_bytes > MAX_OUTPUT_BYTES:
            self._flush()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        """Send what there is to report. What an attempt has printed comes before its end."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        outputs, printing = [], self._printing
        while printing:
            index, executing = printing.popitem()
            content = b"".join([executing.output.popleft() for _ in range(len(executing.output))])
            executing.output_bytes = 0
            outputs.append((index, content))
        content = protocol.frames(outputs, self._successes, self._reports, self._must_retire)
        self._successes, self._reports = [], []
        try:
            protocol.write_all(self._results, content)
        except OSError as error:
            self._on_failure(error)
