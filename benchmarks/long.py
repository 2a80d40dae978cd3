"""Long attempts on one worker, enqueued one by one: how long each waits from its enqueue to its handler's first line.

Each is enqueued when the one before it is known to take long, and none has ended when the last one starts. The value
is the longest of the waits.
"""

from __future__ import annotations

import time

import psycopg

import yamlsched
from benchmarks.contenders.base import NotMeasured
from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import Bench, alternate
from benchmarks.latency import await_delays, stop

PART = "long"
KNOWN_SECONDS = 0.5  # after which a worker knows that an attempt takes long


def run(bench: Bench) -> None:
    for contender in bench.contenders:
        if isinstance(contender, Yamlsched):
            measures = [_measure(bench, contender, count) for count in bench.sizes.long]
            alternate(bench.repeat, *measures)


def _measure(bench: Bench, contender: Yamlsched, count: int):
    case = f"{count} long attempts, concurrency {count}"

    def measure() -> None:
        file = bench.folder / "delays"
        file.unlink(missing_ok=True)
        delays: list[int] = []  # microseconds
        with bench.database() as dsn:
            contender.prepare(dsn, 0)
            worker = contender.start_loop(dsn, file, "--concurrency", str(count), "--grace", "0s")
            try:
                contender.send(dsn, 1, 0)  # until its end, the worker is starting
                await_delays(file, 1, worker, contender)
                with psycopg.connect(dsn, autocommit=True) as connection:
                    for number in range(1, count + 1):
                        yamlsched.enqueue(connection, "stays", {"sent": time.time_ns() // 1000})
                        delays = await_delays(file, number + 1, worker, contender)[1:]
                        time.sleep(KNOWN_SECONDS)
            except NotMeasured as error:
                bench.not_measured(PART, str(error), case)
                return
            finally:
                stop(worker)
        bench.add(PART, case, contender.name, "ms", max(delays) / 1000, more_is_better=False)

    return measure
