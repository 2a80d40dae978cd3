"""How quickly runs that do nothing are carried out: 20,000 and 100,000, by one worker and by two.

Rates are from the first handler's start to the last one's end, as each contender sees it; yamlsched's, by the
database's timestamps, from its first claim to its last written outcome. Nobody's start-up counts. For yamlsched the
whole command, from start to exit, stands beside.
"""

from __future__ import annotations

from benchmarks.contenders.base import Contender, usable
from benchmarks.contenders.ours import Ours
from benchmarks.harness import Bench, alternate

PART = "drain"


def run(bench: Bench) -> None:
    there, missing = usable(bench.contenders)
    for contender, why in missing:
        bench.not_measured(PART, why, contender=contender.name)
    for count in bench.sizes.drain:
        for workers in (1, 2):
            alternate(bench.repeat, *[_measure(bench, c, count, workers) for c in there if _takes(c, count, workers)])


def _takes(contender: Contender, count: int, workers: int) -> bool:
    """Slow ones are measured on fewer jobs, and not on a hundred thousand."""
    return (contender.most is None or count <= 20_000) and (workers == 1 or not contender.lone)


def _measure(bench: Bench, contender: Contender, count: int, workers: int):
    jobs = min(count, contender.most or count)
    case = f"{count:,} runs, {workers} worker{'s' if workers > 1 else ''}"
    note = contender.note + (f"; measured on {jobs:,} runs" if jobs < count else "")

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, jobs)
            bench.settle(dsn)
            drained = contender.drain(dsn, workers)
            if drained.runs != jobs:
                raise RuntimeError(f"{contender.name} carried out {drained.runs} of {jobs} jobs")
            bench.add(PART, case, contender.name, "jobs/s", drained.runs / drained.inside, note)
            if isinstance(contender, Ours):
                whole = jobs / contender.outside
                bench.add(PART, case, contender.name, "jobs/s whole command", whole, "from start to exit")

    return measure
