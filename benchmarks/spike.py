"""10,000 runs due in the same minute, executed by 1, 4 and 8 workers on as many hosts.

Measured: the time until all have ended and the contention. No run may be executed twice. The runs are first runs that
may execute side by side, then slots of 10,000 jobs with `overlap: wait`, which a claim finds job by job.
"""

from __future__ import annotations

import psycopg

from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.definitions import schedule
from benchmarks.harness import Bench, alternate, finish

PART = "spike"
SLOTS = """
insert into yamlsched.job_runs
    (namespace, definition_id, job_type, payload, idempotency_key, scheduled_for, run_at, max_attempts, exclusive)
select d.namespace, d.id, d.job_type, '{"n": 1}', d.job_type || ':2026-01-01', m.at, m.at, 5, true
from yamlsched.job_definitions d, (select date_trunc('minute', now()) as at) m
where d.schedule is not null
"""
OUTCOME = """
select count(*) filter (where status = 'succeeded'), sum(attempts),
       extract(epoch from max(finished_at) - min(started_at))::float8
from yamlsched.job_runs
"""
CONTENTION = "select deadlocks, xact_rollback from pg_stat_database where datname = current_database()"


def run(bench: Bench) -> None:
    for workers in (1, 4, 8):
        alternate(
            max(1, bench.repeat // 2),
            lambda w=workers: _measure(bench, w, are_slots=False),
            lambda w=workers: _measure(bench, w, are_slots=True),
        )


def _measure(bench: Bench, workers: int, are_slots: bool) -> None:
    ours, count = Yamlsched(), bench.sizes.spike
    with bench.database() as dsn:
        if are_slots:
            for host in range(workers):
                (ours.folder / str(host) / "schedules.yaml").write_text(schedule(count))
        ours.create(dsn)
        with psycopg.connect(dsn) as connection:
            if are_slots:
                connection.execute(SLOTS)
            else:
                ours.enqueue(dsn, "noop", count)
        bench.vacuum(dsn)
        initial = _contention(dsn)
        finish([ours.start(dsn, host) for host in range(workers)])
        with psycopg.connect(dsn) as connection:
            done, attempts, seconds = connection.execute(OUTCOME).fetchone()
        deadlocks, rollbacks = (after - before for after, before in zip(_contention(dsn), initial, strict=True))
    if (done, attempts) != (count, count):
        raise RuntimeError(f"{count} runs, {done} succeeded, {attempts} attempts: a run was lost or executed twice")
    kind = "slots of as many jobs" if are_slots else "runs side by side"
    case = f"{count:,} {kind}, {workers} worker{'s' if workers > 1 else ''}"
    bench.add(PART, case, "yamlsched", "s", seconds, "each executed once", more_is_better=False)
    bench.add(PART, case, "yamlsched", "deadlocks", deadlocks, more_is_better=False)
    bench.add(PART, case, "yamlsched", "rollbacks", rollbacks, more_is_better=False)


def _contention(dsn: str) -> tuple[int, int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_stat_clear_snapshot()")
        counts: tuple[int, int] = connection.execute(CONTENTION).fetchone()
        return counts
