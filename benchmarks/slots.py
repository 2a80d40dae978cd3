"""A real handler's overhead: with handlers that take 10 ms, which share of slots / 10 ms gets done.

Everybody is to be busy for the same time; those that drain slowly get fewer runs: enqueueing would take minutes.
"""

from __future__ import annotations

from benchmarks.contenders.base import Contender, usable
from benchmarks.harness import Bench, alternate

PART = "slots"
MS = 10


def run(bench: Bench) -> None:
    there, missing = usable(bench.contenders)
    for contender, why in missing:
        bench.not_measured(PART, why, contender=contender.name)
    for slots in bench.sizes.slots:
        alternate(bench.repeat, *[_measure(bench, c, slots) for c in there if slots == 1 or c.name != "bare loop"])


def _measure(bench: Bench, contender: Contender, slots: int):
    wanted = max(4, int(slots * bench.sizes.busy_seconds * 1000 / MS))
    jobs = min(wanted, contender.most or wanted)
    note = contender.note + (
        f"; measured on {jobs:,} runs of {wanted:,}: start-up weighs more" if jobs < wanted else ""
    )

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, jobs)
            bench.settle(dsn)
            drained = contender.drain(dsn, 1, slots, MS)
        share = drained.runs / drained.inside / (slots * 1000 / MS)
        if share > 1.02:
            raise RuntimeError(
                f"{contender.name} got {share:.2f} of {slots} slots: it has more of them than it was given"
            )
        bench.add(PART, f"10 ms handlers, {slots} slots", contender.name, "of the slots", share, note)

    return measure
