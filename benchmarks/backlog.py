"""The drain again, of 100,000 due runs in a table that holds a million finished ones: its rate, as a share of the rate
in a table without them. And the plan of the claim, which must touch no finished row.
"""

from __future__ import annotations

import psycopg

from benchmarks.contenders.ours import Ours
from benchmarks.harness import Bench, alternate

PART = "backlog"
HISTORY = """
insert into yamlsched.job_runs
    (namespace, definition_id, job_type, payload, run_at, status, attempts, max_attempts,
     locked_by, started_at, finished_at, created_at, updated_at)
select 'default', d.id, 'noop', jsonb_build_object('n', n), at, 'succeeded', 1, 5, 'host:1:1', at, at, at, at
from yamlsched.job_definitions d, generate_series(1, %s) n,
     lateral (select now() - interval '7 days' * n / %s as at) as past
where d.job_type = 'noop'
"""


def run(bench: Bench) -> None:
    ours, case = Ours(), f"{bench.sizes.backlog:,} due runs"
    rates: dict[int, float] = {}

    def measure(finished: int) -> None:
        with bench.database() as dsn:
            ours.create(dsn)
            add_finished(dsn, finished)
            ours.enqueue(dsn, "noop", bench.sizes.backlog)
            bench.settle(dsn)
            drained = ours.drain(dsn, 1)
        rates[finished] = drained.runs / drained.inside
        bench.add(PART, f"{case}, {finished:,} finished", ours.name, "jobs/s", rates[finished])
        if finished:
            share = rates[finished] / rates[0]
            bench.add(PART, f"{case}, {finished:,} finished", ours.name, "of itself without", share, "target 0.9")

    alternate(bench.repeat, lambda: measure(0), lambda: measure(bench.sizes.finished))


def add_finished(dsn: str, count: int) -> None:
    if count:
        with psycopg.connect(dsn) as connection:
            connection.execute(HISTORY, (count, count))
