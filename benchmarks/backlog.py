"""The drain of 100,000 due runs in a table with a million finished runs, as a share of the rate without those."""

from __future__ import annotations

import psycopg

from benchmarks.contenders.yamlsched_ import Yamlsched
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
    ours, case = Yamlsched(), f"{bench.sizes.backlog:,} due runs"
    rates: dict[int, float] = {}

    def measure(finished: int) -> None:
        with bench.database() as dsn:
            ours.create(dsn)
            add_finished(dsn, finished)
            ours.enqueue(dsn, "noop", bench.sizes.backlog)
            bench.vacuum(dsn)
            drained = ours.drain(dsn, 1)
        rates[finished] = drained.runs / drained.seconds
        bench.add(PART, f"{case}, {finished:,} finished", ours.name, "jobs/s", rates[finished])
        if finished:
            share = rates[finished] / rates[0]
            bench.add(
                PART,
                f"{case}, {finished:,} finished",
                ours.name,
                "of itself without",
                share,
                "target 0.9",
            )

    alternate(bench.repeat, lambda: measure(0), lambda: measure(bench.sizes.finished))


def add_finished(dsn: str, count: int) -> None:
    if count:
        with psycopg.connect(dsn) as connection:
            connection.execute(HISTORY, (count, count))
