"""The rate at which 20,000 and 100,000 runs that do nothing are executed, by one worker and by two.

Each contender measures from the start of the first handler to the end of the last. For yamlsched the time runs from the
first claim to the last written outcome, by the database's timestamps. Start-up is not included.
The rate of the whole command, from start to exit, is measured as well.
"""

from __future__ import annotations

from benchmarks.contenders.base import Contender, usable
from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import Bench, alternate

PART = "drain"


def run(bench: Bench) -> None:
    available, missing = usable(bench.contenders)
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for count in bench.sizes.drain:
        for workers in (1, 2):
            alternate(
                bench.repeat,
                *[
                    _measure(bench, c, count, workers)
                    for c in available
                    if _is_measured(c, count, workers)
                ],
            )


def _is_measured(contender: Contender, count: int, workers: int) -> bool:
    """Return whether to measure a contender: slow ones have fewer jobs, and are not measured on 100,000."""
    return (contender.max_jobs is None or count <= 20_000) and (
        workers == 1 or not contender.single_worker
    )


def _measure(bench: Bench, contender: Contender, count: int, workers: int):
    jobs = min(count, contender.max_jobs or count)
    case = f"{count:,} runs, {workers} worker{'s' if workers > 1 else ''}"
    note = contender.note + (f"; measured on {jobs:,} runs" if jobs < count else "")

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, jobs)
            bench.vacuum(dsn)
            drained = contender.drain(dsn, workers)
            if drained.runs != jobs:
                raise RuntimeError(f"{contender.name} executed {drained.runs} of {jobs} jobs")
            bench.add(PART, case, contender.name, "jobs/s", drained.runs / drained.seconds, note)
            if isinstance(contender, Yamlsched):
                whole = jobs / contender.command_seconds
                bench.add(
                    PART, case, contender.name, "jobs/s whole command", whole, "from start to exit"
                )

    return measure
