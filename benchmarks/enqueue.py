"""Enqueueing compared with bare inserts into the same table, with the same indexes and constraints.

Bulk: one statement. Single: each run in its own transaction, where the commit takes most of the time. Inside: 100 runs
in one transaction of the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import yamlsched
from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import Bench, alternate

PART = "enqueue"
COLUMNS = "(namespace, definition_id, job_type, payload, run_at, max_attempts)"
BARE_BULK = f"""
insert into yamlsched.job_runs {COLUMNS}
select 'default', %s, 'noop', p.payload, clock_timestamp(), 5 from unnest(%s::text[]::jsonb[]) as p (payload)
"""
BARE = f"insert into yamlsched.job_runs {COLUMNS} values ('default', %s, 'noop', %s, clock_timestamp(), 5) returning id"
PER_TRANSACTION = 100


def run(bench: Bench) -> None:
    import json

    ours = Yamlsched()
    with bench.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        ours.create(dsn)
        connection.prepare_threshold = None  # for both, as behind PgBouncer
        [definition] = connection.execute(
            "select id from yamlsched.job_definitions where job_type = 'noop'"
        ).fetchone()
        connection.execute(
            "create table orders (id bigint generated always as identity primary key, what text)"
        )
        payloads = [{"n": n} for n in range(bench.sizes.bulk)]

        def bulk() -> None:
            yamlsched.enqueue_many(connection, "noop", payloads)

        def bare_bulk() -> None:
            connection.execute(
                BARE_BULK, (definition, [json.dumps(payload) for payload in payloads])
            )

        def singles(insert: Callable[[int], Any]) -> Callable[[], None]:
            def do() -> None:
                for n in range(bench.sizes.singles):
                    insert(n)

            return do

        def inside(insert: Callable[[int], Any]) -> Callable[[], None]:
            def do() -> None:
                for _ in range(max(1, bench.sizes.singles // PER_TRANSACTION)):
                    with connection.transaction():
                        connection.execute("insert into orders (what) values ('a book')")
                        for n in range(PER_TRANSACTION):
                            insert(n)

            return do

        def one(n: int) -> Any:
            return yamlsched.enqueue(connection, "noop", {"n": n})

        def bare_one(n: int) -> Any:
            return connection.execute(BARE, (definition, Jsonb({"n": n}))).fetchone()

        total = max(1, bench.sizes.singles // PER_TRANSACTION) * PER_TRANSACTION
        cases = [
            (f"bulk, {bench.sizes.bulk:,} by one statement", bench.sizes.bulk, bulk, bare_bulk),
            ("single, each with its commit", bench.sizes.singles, singles(one), singles(bare_one)),
            (
                f"{PER_TRANSACTION} inside the caller's transaction",
                total,
                inside(one),
                inside(bare_one),
            ),
        ]
        for case, count, own, bare in cases:
            for warm_up in (own, bare):
                warm_up()

            def measure(
                name: str, do: Callable[[], None], case: str = case, count: int = count
            ) -> None:
                started = time.perf_counter()
                do()
                bench.add(PART, case, name, "runs/s", count / (time.perf_counter() - started))

            alternate(
                bench.repeat,
                lambda: measure("yamlsched", own),  # noqa: B023
                lambda: measure("bare insert", bare),  # noqa: B023
            )
            connection.execute("truncate yamlsched.job_runs cascade")
