"""I/O-bound handlers: runs that each await 100 ms, 200 and 1,000 at once, as coroutines of one process.

yamlsched's jobs have a queue with ``mode: async``; "yamlsched, processes" is the same handler in a process of its own for
each run. The memory is that of the worker and its children together, shared pages counted once, at its peak.
"""

from __future__ import annotations

import threading
from pathlib import Path

from benchmarks.contenders.base import Contender, usable
from benchmarks.contenders.yamlsched_ import SCHEDULES, SHARED, Yamlsched
from benchmarks.harness import Bench, alternate

PART = "io"
MS = 100
ASYNCHRONOUS = ("yamlsched", "graphile-worker", "pgqueuer", "chancy", "procrastinate")
MAX_PROCESSES = 200
SAMPLE_SECONDS = 0.5


def run(bench: Bench) -> None:
    available, missing = usable(c for c in bench.contenders if c.name in ASYNCHRONOUS)
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for at_once in bench.sizes.at_once:
        measures = [_measure(bench, contender, at_once) for contender in available]
        if at_once <= MAX_PROCESSES and any(
            isinstance(contender, Yamlsched) for contender in available
        ):
            measures.append(_measure_processes(bench, at_once))
        alternate(bench.repeat, *measures)


def _case(at_once: int) -> str:
    return f"await {MS} ms, {at_once:,} at once"


def _measure(bench: Bench, contender: Contender, at_once: int):
    count = (
        bench.sizes.io if contender.max_jobs is None else min(bench.sizes.io, contender.max_jobs)
    )
    note = contender.note + (f"; measured on {count:,} runs" if count < bench.sizes.io else "")

    if isinstance(contender, Yamlsched):
        contender = Yamlsched(schedules=SCHEDULES + SHARED.format(at_once))

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, count)
            bench.vacuum(dsn)
            if isinstance(contender, Yamlsched):
                memory = Memory(contender)
                drained = contender.drain(dsn, 1, None, MS, "shares")
                bench.add(
                    PART,
                    _case(at_once),
                    contender.name,
                    "MiB",
                    memory.peak(),
                    "",
                    more_is_better=False,
                )
                note_of_it = "mode: async; rows kept"
            else:
                drained = contender.drain(dsn, 1, at_once, MS)
                note_of_it = note
        bench.add(
            PART,
            _case(at_once),
            contender.name,
            "runs/s",
            drained.runs / drained.seconds,
            note_of_it,
        )

    return measure


def _measure_processes(bench: Bench, at_once: int):
    def measure() -> None:
        contender = Yamlsched()
        with bench.database() as dsn:
            contender.prepare(dsn, bench.sizes.io)
            bench.vacuum(dsn)
            memory = Memory(contender)
            drained = contender.drain(dsn, 1, at_once, MS, "awaits")
        name = "yamlsched, processes"
        bench.add(PART, _case(at_once), name, "MiB", memory.peak(), "", more_is_better=False)
        bench.add(
            PART,
            _case(at_once),
            name,
            "runs/s",
            drained.runs / drained.seconds,
            "mode: process",
        )

    return measure


class Memory:
    """Measures the workers that ``contender`` starts from now on, and their children."""

    def __init__(self, contender: Yamlsched) -> None:
        self._contender, self._peak, self._is_over = contender, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        contender.pids.clear()
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, sum(_mebibytes(pid) for pid in list(self._contender.pids)))

    def peak(self) -> float:
        """Return the largest memory that was seen, in MiB."""
        self._is_over.set()
        self._thread.join()
        return self._peak


def _mebibytes(pid: int) -> float:
    """Return the proportional set size of a process and its descendants; 0 for one that has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return 0.0
    own = next(
        int(line.split()[1]) / 1024 for line in rollup.splitlines() if line.startswith("Pss:")
    )
    return own + sum(_mebibytes(int(child)) for child in children)
