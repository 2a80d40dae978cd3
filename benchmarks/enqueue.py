"""Enqueueing, beside bare inserts into the same table, with the same indexes and constraints.

Bulk: one statement. Single: each in a transaction of its own, where the commit is most of it; and a hundred inside one
transaction of the caller's, where it is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import yamlsched
from benchmarks.contenders.ours import Ours
from benchmarks.harness import Bench, alternate

PART = "enqueue"
COLUMNS = "(namespace, definition_id, job_type, payload, run_at, max_attempts)"
BARE_BULK = f"""
insert into yamlsched.job_runs {COLUMNS}
select 'default', %s, 'noop', p.payload, clock_timestamp(), 5 from unnest(%s::text[]::jsonb[]) as p (payload)
"""
BARE = f"insert into yamlsched.job_runs {COLUMNS} values ('default', %s, 'noop', %s, clock_timestamp(), 5) returning id"
IN_ONE = 100


def run(bench: Bench) -> None:
    import json

    ours = Ours()
    with bench.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        ours.create(dsn)
        connection.prepare_threshold = None  # as behind PgBouncer, for both
        [definition] = connection.execute("select id from yamlsched.job_definitions where job_type = 'noop'").fetchone()
        connection.execute("create table orders (id bigint generated always as identity primary key, what text)")
        payloads = [{"n": n} for n in range(bench.sizes.bulk)]

        def bulk() -> None:
            yamlsched.enqueue_many(connection, "noop", payloads)

        def bare_bulk() -> None:
            connection.execute(BARE_BULK, (definition, [json.dumps(payload) for payload in payloads]))

        def singles(insert: Callable[[int], Any]) -> Callable[[], None]:
            def do() -> None:
                for n in range(bench.sizes.singles):
                    insert(n)

            return do

        def inside(insert: Callable[[int], Any]) -> Callable[[], None]:
            def do() -> None:
                for _ in range(max(1, bench.sizes.singles // IN_ONE)):
                    with connection.transaction():
                        connection.execute("insert into orders (what) values ('a thing')")
                        for n in range(IN_ONE):
                            insert(n)

            return do

        def one(n: int) -> Any:
            return yamlsched.enqueue(connection, "noop", {"n": n})

        def bare_one(n: int) -> Any:
            return connection.execute(BARE, (definition, Jsonb({"n": n}))).fetchone()

        in_all = max(1, bench.sizes.singles // IN_ONE) * IN_ONE
        cases = [
            (f"bulk, {bench.sizes.bulk:,} by one statement", bench.sizes.bulk, bulk, bare_bulk),
            ("single, each with its commit", bench.sizes.singles, singles(one), singles(bare_one)),
            (f"{IN_ONE} inside the caller's transaction", in_all, inside(one), inside(bare_one)),
        ]
        for case, count, our, bare in cases:
            for warm in (our, bare):
                warm()

            def measure(name: str, do: Callable[[], None], case: str = case, count: int = count) -> None:
                begun = time.perf_counter()
                do()
                bench.add(PART, case, name, "runs/s", count / (time.perf_counter() - begun))

            alternate(bench.repeat, lambda: measure("yamlsched", our), lambda: measure("bare insert", bare))  # noqa: B023
            connection.execute("truncate yamlsched.job_runs cascade")
