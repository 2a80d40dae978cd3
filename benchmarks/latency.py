"""The time from enqueue to the handler's first line, idle (one job each 100 ms) and under load (one each 2 ms)."""

from __future__ import annotations

import signal
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.contenders.base import Contender, NotMeasured, usable
from benchmarks.harness import Bench, alternate

PART = "latency"
CASES = {"idle, one job each 100 ms": (100.0, 1), "under load, one each 2 ms": (2.0, 10)}
WARM_UP_SECONDS = 3.0  # for workers to start
TIMEOUT_SECONDS = 10.0


def run(bench: Bench) -> None:
    available, missing = usable(c for c in bench.contenders if c.name != "bare loop")
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for case, (gap, times) in CASES.items():
        alternate(
            bench.repeat,
            *[_measure(bench, c, case, gap, bench.sizes.latencies * times) for c in available],
        )


def _measure(bench: Bench, contender: Contender, case: str, gap: float, count: int):
    def measure() -> None:
        file = bench.folder / "delays"
        file.unlink(missing_ok=True)
        with bench.database() as dsn:
            contender.prepare(dsn, 0)
            try:
                worker = contender.start_loop(dsn, file)
            except NotMeasured as error:
                bench.not_measured(PART, str(error), case, contender.name)
                return
            try:
                time.sleep(WARM_UP_SECONDS)
                contender.send(dsn, 1, gap)
                delays = await_delays(file, 1, worker, contender)
                contender.send(dsn, count, gap)
                delays = await_delays(file, count + 1, worker, contender)[1:]
            except NotMeasured as error:
                bench.not_measured(PART, str(error), case, contender.name)
                return
            finally:
                stop(worker)
        bench.add(
            PART,
            case,
            contender.name,
            "ms p50",
            statistics.median(delays) / 1000,
            more_is_better=False,
        )
        late = sorted(delays)[min(len(delays) - 1, int(len(delays) * 0.99))]
        bench.add(PART, case, contender.name, "ms p99", late / 1000, more_is_better=False)

    return measure


def await_delays(
    file: Path, count: int, worker: subprocess.Popen[str], contender: Contender
) -> list[int]:
    """Return the delays that handlers have written to ``file``, in microseconds, when there are ``count``."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    delays: list[int] = []
    while time.monotonic() < deadline and worker.poll() is None:
        delays = [int(line) for line in file.read_text().splitlines()] if file.exists() else []
        if len(delays) >= count:
            return delays
        time.sleep(0.05)
    raise NotMeasured(f"{contender.name} executed {len(delays)} of {count} jobs in time")


def stop(worker: subprocess.Popen[str]) -> None:
    """Stop a worker by SIGTERM, and wait for its end."""
    worker.send_signal(signal.SIGTERM)
    try:
        worker.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
