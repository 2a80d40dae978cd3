"""2,000 runs behind a limit of 2, and of 10 for each of 1,000 values; 2,000 slot runs of 10 jobs, one after another.

Each as a share of the rate of as many runs without, in the same file, by one worker. The runs do nothing, so the share
is what permits cost, not how long runs wait for each other.
"""

from __future__ import annotations

import psycopg

import yamlsched
from benchmarks.contenders.yamlsched_ import Yamlsched, command
from benchmarks.harness import Bench, alternate
from benchmarks.harness import run as run_command

PART = "limits"
SCHEDULES = """\
version: 1
limits:
  two: {max: 2}
  tenant: {max: 10, by: [tenant]}
jobs:
  noop: {handler: bench_handlers.noop}
  behind_two: {handler: bench_handlers.noop, limit: two}
  by_tenant: {handler: bench_handlers.tenant, limit: tenant}
"""
SLOTS = "  {overlap}_{n}: {{handler: bench_handlers.slot, cron: '* * * * *', overlap: {overlap}}}\n"
JOBS = 10
HANDLERS = """

def tenant(tenant):
    pass


def slot():
    pass
"""


def run(bench: Bench) -> None:
    ours = Yamlsched(
        schedules=SCHEDULES
        + "".join(
            SLOTS.format(n=n, overlap=overlap) for overlap in ("allow", "wait") for n in range(JOBS)
        )
    )
    with (ours.folder / "0/bench_handlers.py").open("a") as file:
        file.write(HANDLERS)
    rates: dict[str, float] = {}

    def measure(case: str, free: str) -> None:
        with bench.database() as dsn:
            ours.create(dsn)
            CASES[case](bench, ours, dsn)
            bench.vacuum(dsn)
            drained = ours.drain(dsn, 1)
        rates[case] = drained.runs / drained.seconds
        bench.add(PART, case, ours.name, "jobs/s", rates[case])
        if case != free:
            share = rates[case] / rates[free]
            bench.add(PART, case, ours.name, "of itself without", share, "target 0.5")

    pairs = [("free", "free"), ("a limit of 2", "free"), ("10 for each of 1,000 values", "free")]
    pairs += [("slots, all at once", "slots, all at once")]
    pairs += [("slots, one after another", "slots, all at once")]
    alternate(bench.repeat, *(lambda pair=pair: measure(*pair) for pair in pairs))


def by_tenant(bench: Bench, ours: Yamlsched, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        payloads = [{"tenant": n % 1_000} for n in range(bench.sizes.limited)]
        yamlsched.enqueue_many(connection, "by_tenant", payloads)


def slots(bench: Bench, ours: Yamlsched, dsn: str, overlap: str) -> None:
    """Create the runs of past minutes. The jobs were applied now, and sync has nothing due."""
    minutes = bench.sizes.limited_slots // JOBS
    for n in range(JOBS):
        words = ("--from", f"{minutes}m", "--to", "1m", "--before-first", "--yes", "--dsn", dsn)
        run_command(
            command("backfill", f"{overlap}_{n}", *words),
            cwd=ours.folder / "0",
            env=ours.environment(dsn),
        )


CASES = {
    "free": lambda bench, ours, dsn: ours.enqueue(dsn, "noop", bench.sizes.limited),
    "a limit of 2": lambda bench, ours, dsn: ours.enqueue(dsn, "behind_two", bench.sizes.limited),
    "10 for each of 1,000 values": by_tenant,
    "slots, all at once": lambda *arguments: slots(*arguments, "allow"),
    "slots, one after another": lambda *arguments: slots(*arguments, "wait"),
}
