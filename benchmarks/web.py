"""Each page of `yamlsched web` beside a million finished runs and 10,000 jobs, and a page that only executes
`select 1`. The time is that of a request over loopback, from its first byte to the last of the answer.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from benchmarks.contenders.yamlsched_ import command
from benchmarks.harness import PYTHON, ROOT, Bench, alternate
from yamlsched import db as store

PART = "web"
TARGET_MS = 200
BUSIEST_SHARE = 10
"""One in this many runs belongs to job_1, which fires every minute."""
DEAD_SHARE = 200
START_TIMEOUT_SECONDS = 30
SELECT_1 = """
import sys, psycopg, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
connection = psycopg.connect(sys.argv[1], autocommit=True)
def page(request):
    return PlainTextResponse(str(connection.execute("select 1").fetchone()))
uvicorn.run(Starlette(routes=[Route("/", page)]), port=int(sys.argv[2]), log_level="error")
"""
JOBS = """
insert into yamlsched.job_definitions
    (namespace, job_type, handler, schedule, timezone, max_attempts, backoff, timeout, lease, overlap, catchup,
     catchup_window, spread, enabled, effective_from, last_slot_at, next_slot_at, description, owner, tags, paused_at,
     after)
select 'default', 'job_' || n, 'handlers.shop.run',
       case when n = 1 then '* * * * *'
            when n %% 20 = 0 then '*/' || 5 * (1 + n / 20 %% 6) || ' * * * *'
            when n %% 97 = 0 then null
            else n %% 60 || ' ' || n / 60 %% 24 || ' * * *' end,
       case n %% 10 when 8 then 'Europe/Berlin' when 9 then 'America/New_York' else 'UTC' end,
       5, '{"policy": "fixed", "delay": "1m", "max_delay": "1h", "delays": [], "jitter": 0.1}', interval '1 hour',
       interval '2 minutes', 'wait', 'latest', interval '365 days',
       case when n %% 7 = 0 and n %% 20 <> 0 then interval '30 minutes' else interval '0' end,
       n %% 50 <> 3, now() - interval '120 days', now() - interval '1 minute',
       case when n %% 97 <> 0 then now() + n %% 1440 * interval '1 minute' end,
       'Describes what job ' || n || ' does', 'team-' || n %% 20, array['tag-' || n %% 5],
       case when n %% 200 = 7 then now() - interval '1 day' end,
       case when n %% 10 in (6, 7) then array['job_' || n - 1] else '{}' end
from generate_series(1, %(jobs)s) n
"""
RUNS = """
insert into yamlsched.job_runs
    (namespace, definition_id, job_type, idempotency_key, scheduled_for, run_at, status, attempts, max_attempts,
     locked_by, started_at, finished_at, failed_at, dead_at, last_error, error_type, created_at, updated_at, exclusive)
select 'default', d.id, d.job_type,
       d.job_type || ':' || to_char(r.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'), r.at, r.at,
       case when r.is_dead then 'dead' else 'succeeded' end, case when r.is_dead then 5 else 1 end, 5,
       'web-' || n %% 3 || ':4711:' || n, r.at + interval '2 seconds', r.ended, case when r.is_dead then r.ended end,
       case when r.is_dead then r.ended end, case when r.is_dead then 'no route to host ' || n %% 40 end,
       case when r.is_dead then 'OSError' end, r.at, r.ended, true
from generate_series(1, %(runs)s) n
cross join lateral (
    select n %% %(busiest)s = 0 as is_busiest, 2 + n %% (%(jobs)s - 1) as job, n / (%(jobs)s - 1) as days
) k
cross join lateral (
    select case when k.is_busiest then date_trunc('minute', now()) - n / %(busiest)s * interval '1 minute'
                else date_trunc('day', now()) - (1 + k.days) * interval '1 day'
                     + (k.job %% 60 + k.job / 60 %% 24 * 60) * interval '1 minute' end as at
) s
cross join lateral (select s.at, s.at + interval '5 seconds' as ended, n %% %(dead)s = 7 as is_dead) r
join yamlsched.job_definitions d
    on d.namespace = 'default' and d.job_type = 'job_' || case when k.is_busiest then 1 else k.job end
on conflict do nothing
"""
FAILURES = """
insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type)
select r.id, 5, r.locked_by, r.started_at, r.failed_at, r.last_error, r.error_type
from yamlsched.job_runs r
where r.dead_at is not null
"""
UNFINISHED = """
insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, status, attempts, max_attempts, locked_by,
                                locked_until, started_at)
select 'default', d.id, d.job_type, now() - n * interval '1 second',
       case when n %% 4 = 0 then 'running' else 'queued' end,
       case when n %% 4 = 0 then 1 else 0 end, 5, case when n %% 4 = 0 then 'web-1:4711:' || n end,
       case when n %% 4 = 0 then now() + interval '2 minutes' end, case when n %% 4 = 0 then now() end
from generate_series(1, 500) n
join yamlsched.job_definitions d on d.namespace = 'default' and d.job_type = 'job_' || 1 + n %% %(jobs)s
"""
OTHERS = """
insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)
select d.id, now() - interval '2 days', now() - interval '1 day', 2, 'overlap', now()
from yamlsched.job_definitions d;
insert into yamlsched.namespaces
    (namespace, hash, environment, host, path, yamlsched_version, tzdata_version, applied_at)
values ('default', 'f00d', '', 'web-1', '/srv/schedules.yaml', '0.1.0', '2026a', now());
insert into yamlsched.operator_actions (namespace, who, verb, target)
select 'default', 'mia', 'retry', 'run:' || n from generate_series(1, 20000) n;
"""


def fill(
    dsn: str, jobs: int, runs: int, finished: str = RUNS, failures: str = FAILURES, days: int = 0
) -> None:
    """Create the tables and their rows. Indexes on runs are created afterwards, which takes a third of the time."""
    given = {"jobs": jobs, "runs": runs, "busiest": BUSIEST_SHARE, "dead": DEAD_SHARE, "days": days}
    with store.connect(dsn) as connection:
        store.migrations.migrate(connection)
    with psycopg.ClientCursor(psycopg.connect(dsn, autocommit=True)) as cursor, cursor.connection:
        # each row has its job: without the foreign keys' checks, and without waiting for the disk
        cursor.execute(
            "set session_replication_role = replica; set synchronous_commit = off; set maintenance_work_mem = '512MB'"
        )
        indexes = cursor.execute(
            "select indexname, indexdef from pg_indexes where schemaname = 'yamlsched' and tablename = 'job_runs' "
            "and indexname not in ('job_runs_pkey', 'job_runs_key')"
        ).fetchall()
        cursor.execute(JOBS, given)
        cursor.execute("analyze yamlsched.job_definitions")
        for name, _ in indexes:
            cursor.execute(f"drop index yamlsched.{name}")
        cursor.execute(finished, given)
        cursor.execute(failures)
        cursor.execute(UNFINISHED, given)
        for _, definition in indexes:
            cursor.execute(definition)
        cursor.execute(OTHERS)
        cursor.execute("vacuum analyze")


def paths(dsn: str) -> list[str]:
    """Return a path of each page: of the busiest job, and of runs of it and of others."""
    from yamlsched.extras.web.pages import PAGES

    with psycopg.connect(dsn) as connection:
        [run, at] = connection.execute(
            "select max(id), to_char(max(run_at) at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI\"Z\"') "
            "from yamlsched.job_runs where job_type = 'job_1' and finished_at is not null"
        ).fetchone()
        [dead] = connection.execute(
            "select max(id) from yamlsched.job_runs where dead_at is not null"
        ).fetchone()
    values = {"job": "job_1", "run": str(run)}
    found = [re.sub(r"\{(\w+)[^}]*\}", lambda part: values[part[1]], page.path) for page in PAGES]
    found[found.index("/find")] = "/find?q=job_"  # one answer would lead on to its page
    more = {
        "/": ["/?q=team-7"],
        "/nights": ["/nights?by=runs", "/nights?only=failing"],
        "/jobs/job_1": ["/jobs/job_1?span=90d", "/jobs/job_77"],
        "/runs": [
            "/runs?status=dead",
            "/runs?job=job_1",
            "/runs?error=host",
            f"/runs?before={run // 2}",
            "/runs?sort=took",
        ],
        f"/runs/{run}": [f"/runs/{dead}"],
        "/why": [f"/why?job=job_1&at={at}", f"/why?job=job_1&at={at[:10]}"],
        "/calendar": ["/calendar?span=1d", "/calendar?q=team-7"],
        "/dead": ["/dead?by=error", "/dead?by=hour"],
    }
    return [path for page in found for path in (page, *more.get(page, ()))]


def run(bench: Bench) -> None:
    jobs, runs = bench.sizes.jobs, bench.sizes.finished
    with bench.database() as dsn:
        fill(dsn, jobs, runs)
        bench.vacuum(dsn)
        server = [*command("web", "--dsn", dsn), "--listen"]  # with the page of all namespaces
        with (
            served(server, "127.0.0.1:{}") as pages,
            served([PYTHON, "-c", SELECT_1, dsn], "{}") as reference,
        ):
            for path in (*paths(dsn), "/report?since=7d"):
                _measure(bench, path, pages, reference)
    slow = [
        row
        for row in bench.rows
        if row.part == PART and row.median > TARGET_MS and row.contender == "yamlsched"
    ]
    for row in slow:
        print(f"above {TARGET_MS} ms: {row.case}: {row.median:.0f} ms")


def _measure(
    bench: Bench,
    path: str,
    pages: http.client.HTTPConnection,
    reference: http.client.HTTPConnection,
) -> None:
    first, size = get(pages, path)
    get(reference, "/")
    note = f"target {TARGET_MS}; {size / 1024:.0f} KiB; the first request took {first:.0f} ms"

    def page() -> None:
        bench.add(PART, path, "yamlsched", "ms", get(pages, path)[0], note, more_is_better=False)

    def select() -> None:
        bench.add(
            PART, path, "a page of select 1", "ms", get(reference, "/")[0], more_is_better=False
        )

    alternate(bench.repeat * bench.sizes.ticks, page, select)


def get(connection: http.client.HTTPConnection, path: str) -> tuple[float, int]:
    """Return the milliseconds and the bytes of an answer."""
    start = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    took = (time.perf_counter() - start) * 1000
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{path}: {answer.status} {body[-2000:].decode()}")
    return took, len(body)


@contextlib.contextmanager
def served(arguments: Sequence[str | Path], address: str) -> Iterator[http.client.HTTPConnection]:
    """Start a server on a free port, the last argument, and yield a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*arguments, address.format(port)],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{arguments} does not answer") from None
                time.sleep(0.05)
        yield http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    finally:
        process.terminate()
        process.wait()
