"""What a child of coroutines sends to its parent: what attempts have printed, how they ended."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable

from yamlsched.worker.local import protocol
from yamlsched.worker.local.loop import Executing
from yamlsched.worker.local.protocol import Success, TaskEnd

MAX_OUTPUT_BYTES = 1 << 18  # of one attempt, unsent: more is sent at once
MAX_UNSENT_BYTES = 1 << 22  # then what prints waits for the parent
FLUSH_SECONDS = 0.004  # for which the report of a success is held back


class Reporter:
    """Collects what there is to report, and writes it to the pipe ``results`` on the event loop of
    this thread.
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
        self._unsent = bytearray()
        self._flush_timer: asyncio.TimerHandle | None = None

    def add_success(self, index: int, took: float, is_busy: bool) -> None:
        """Report a success; together with others, if the process ``is_busy``."""
        self._successes.append((index, took, None))
        self._flush_in(FLUSH_SECONDS if is_busy else 0.0)

    def add(self, report: TaskEnd) -> None:
        self._reports.append(report)
        self._flush_in(0.0)

    def retire(self) -> None:
        """Have this process replaced."""
        self._must_retire = True
        self._flush_in(0.0)

    def on_output(self, executing: Executing) -> None:
        """Send what ``executing`` has printed soon; called in any thread."""
        self._printing[executing.index] = executing
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._flush_in, 0.0)
        elif executing.output_bytes > MAX_OUTPUT_BYTES:
            self._flush()
            if len(self._unsent) > MAX_UNSENT_BYTES:
                self._write_all()
        else:
            self._flush_in(0.0)

    def _flush_in(self, seconds: float) -> None:
        timer = self._flush_timer
        if timer is not None and timer.when() > self._loop.time() + seconds:
            timer.cancel()
            timer = None
        self._flush_timer = timer or self._loop.call_later(seconds, self._flush)

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
        self._unsent += protocol.frames(outputs, self._successes, self._reports, self._must_retire)
        self._successes, self._reports = [], []
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
