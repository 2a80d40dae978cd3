"""Every verb that reads the history, and each page, beside ten million finished runs, a million failed attempts and
10,000 jobs. A verb is a process: its time includes the start of Python, which `--version` shows alone.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable

import psycopg

from benchmarks import web
from benchmarks.contenders.yamlsched_ import command
from benchmarks.harness import Bench, alternate, measure_command

PART = "history"
TARGET_MS = 500
DAYS = 90
RUNS = """
insert into yamlsched.job_runs
    (namespace, definition_id, job_type, idempotency_key, scheduled_for, run_at, status, attempts, max_attempts,
     locked_by, started_at, finished_at, failed_at, dead_at, last_error, error_type, created_at, updated_at, exclusive)
select 'default', d.id, d.job_type,
       case when not r.is_busiest
            then d.job_type || ':' || to_char(r.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"') end,
       case when not r.is_busiest then date_trunc('minute', r.at) end, date_trunc('minute', r.at), r.status,
       case r.status when 'dead' then 5 when 'cancelled' then 0 else 1 + r.is_retried::integer end, 5,
       case when r.status <> 'cancelled' then 'web-' || r.n %% 3 || ':4711:' || r.n end,
       case when r.status <> 'cancelled' then r.ended - r.n %% 4 * interval '1 second' end, r.ended,
       case when r.status = 'dead' or r.is_retried then r.ended end, case when r.status = 'dead' then r.ended end,
       case when r.status = 'dead' or r.is_retried then 'no route to host ' || r.n %% 40 end,
       case when r.status = 'dead' or r.is_retried
            then (array['OSError', 'TimeoutError', 'KeyError'])[1 + r.n / 60 %% 3] end,
       r.at, r.ended, not r.is_busiest
from (
    select k.n, k.is_busiest, k.job, k.at, k.at + interval '5 seconds' as ended, k.n %% 60 = 8 as is_retried,
           case when k.n %% 60 = 7 then 'dead' when k.n %% 10000 = 11 then 'cancelled' else 'succeeded' end as status
    from (
        select n, n %% %(busiest)s = 0 as is_busiest,
               now() - (%(runs)s - n) * interval '%(days)s days' / %(runs)s as at,
               case when n %% %(busiest)s = 0 then 1 else 2 + n %% (%(jobs)s - 1) end as job
        from generate_series(1, %(runs)s) n
    ) k
) r
join yamlsched.job_definitions d on d.namespace = 'default' and d.job_type = 'job_' || r.job
order by r.n
"""
FAILURES = """
insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type)
select r.id, a.attempt, r.locked_by, r.started_at, r.failed_at, r.last_error, r.error_type
from yamlsched.job_runs r
cross join generate_series(1, r.attempts - (r.status <> 'dead')::integer) a (attempt)
where r.failed_at is not null
"""


def fill(dsn: str, jobs: int, runs: int) -> None:
    """Create the tables and their rows: of ``runs``, a tenth of one job, over ``DAYS`` days, ids in order of time."""
    web.fill(dsn, jobs, runs, RUNS, FAILURES, days=DAYS)


def verbs(dsn: str) -> dict[str, list[str]]:
    """Return the words of each verb, by what the results call it."""
    with psycopg.connect(dsn) as connection:
        [run, slot] = connection.execute(
            "select id, to_char(scheduled_for at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI\"Z\"') "
            "from yamlsched.job_runs where job_type = 'job_77' and finished_at is not null order by id desc limit 1"
        ).fetchone()
        [dead] = connection.execute(
            "select max(run_id) from yamlsched.job_failures where attempt = 5"
        ).fetchone()
    texts = [
        "status", "status -v", "status --check", "runs", "runs --job job_1", "runs --job job_77", "runs --tag tag-1",
        *(f"runs --status {status}" for status in ("succeeded", "dead", "failed", "running", "queued", "cancelled")),
        "runs --since 5m", "runs --since 7d", "runs --since 60d --until 59d", "runs --job job_1 --since 7d",
        "runs --error host", "runs --error nowhere", "runs --error-type KeyError", "runs --error-type Nothing",
        "runs --key job_77:*", f"runs --key job_77:{slot}", "runs --worker web-1", "runs --worker elsewhere",
        f"runs --before {run // 2}", "runs --group-by error_type", "runs --group-by error_type --since 1d",
        "runs --group-by error_type --job job_1", f"show {run}", f"show {dead}", f"why job_77 --at {slot}",
        f"why job_77 --at {slot[:10]}", "report", "report --since 7d", "report --since 30d", "metrics", "doctor",
        "log", "log job_77", "runs --status dead --since 1d",
    ]  # fmt: skip
    return {text: text.split() for text in texts}


def run(bench: Bench) -> None:
    jobs, runs = bench.sizes.jobs, bench.sizes.history
    with bench.database() as dsn:
        fill(dsn, jobs, runs)
        bench.vacuum(dsn)
        [start] = _measures(bench, {"--version": ["--version"]}, [])
        of_verbs = _measures(bench, verbs(dsn), ["--dsn", dsn, "--namespace", "default"])
        for measure in of_verbs:
            alternate(bench.repeat, start, measure)
        with web.served([*command("web", "--dsn", dsn), "--listen"], "127.0.0.1:{}") as pages:
            for path in web.paths(dsn):
                _page(bench, path, pages)
    slow = [row for row in bench.rows if row.part == PART and row.median > TARGET_MS]
    for row in slow:
        print(f"above {TARGET_MS} ms: {row.case}: {row.median:.0f} ms")


def _measures(
    bench: Bench, words: dict[str, list[str]], options: list[str]
) -> list[Callable[[], None]]:
    def measure(case: str, given: list[str]) -> Callable[[], None]:
        def once() -> None:
            cost = measure_command([*command(*given, *options)], cwd=bench.folder, accept=(0, 1))
            bench.add(
                PART,
                case,
                "yamlsched",
                "ms",
                cost.seconds * 1000,
                f"target {TARGET_MS}",
                more_is_better=False,
            )

        return once

    return [measure(case, given) for case, given in words.items()]


def _page(bench: Bench, path: str, pages: http.client.HTTPConnection) -> None:
    first, _ = web.get(pages, path)
    note = f"target {TARGET_MS}; the first request took {first:.0f} ms"
    for _ in range(bench.repeat):
        bench.add(
            PART, path, "yamlsched", "ms", web.get(pages, path)[0], note, more_is_better=False
        )
