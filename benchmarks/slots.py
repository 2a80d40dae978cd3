"""The overhead of real handlers: with handlers of 10 ms, the share of the permits' time that is spent in handlers.

All contenders work for the same time. Those that enqueue slowly get fewer runs, because enqueueing would take minutes.
"""

from __future__ import annotations

from benchmarks.contenders.base import Contender, usable
from benchmarks.harness import Bench, alternate

PART = "slots"
MS = 10


def run(bench: Bench) -> None:
    available, missing = usable(bench.contenders)
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for concurrency in bench.sizes.concurrency:
        alternate(
            bench.repeat,
            *[
                _measure(bench, c, concurrency)
                for c in available
                if concurrency == 1 or c.name != "bare loop"
            ],
        )


def _measure(bench: Bench, contender: Contender, concurrency: int):
    wanted = max(4, int(concurrency * bench.sizes.busy_seconds * 1000 / MS))
    jobs = min(wanted, contender.max_jobs or wanted)
    note = contender.note + (
        f"; measured on {jobs:,} runs of {wanted:,}: start-up has more weight"
        if jobs < wanted
        else ""
    )

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, jobs)
            bench.vacuum(dsn)
            drained = contender.drain(dsn, 1, concurrency, MS)
        share = drained.runs / drained.seconds / (concurrency * 1000 / MS)
        if share > 1.02:
            raise RuntimeError(
                f"{contender.name} used {share:.2f} of {concurrency} permits: it exceeds its concurrency limit"
            )
        bench.add(
            PART,
            f"10 ms handlers, limit {concurrency}",
            contender.name,
            "of the permits",
            share,
            note,
        )

    return measure
