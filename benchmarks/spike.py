"""10,000 and 100,000 runs due in the same minute, executed by 1 to 16 workers on as many hosts that were idle.

Measured: the time until all have ended, the CPU time of the server and of the workers, and the contention. No run may
be executed twice. The runs are first runs that may execute side by side, then slots of 10,000 jobs with
`overlap: wait`, which a claim finds job by job. The 10,000 take less time than 16 workers need to start their children.
"""

from __future__ import annotations

import time

import psycopg

from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.definitions import schedule
from benchmarks.harness import (
    TIMEOUT_SECONDS,
    Bench,
    alternate,
    finish,
    process_cpu_seconds,
    server_cpu_seconds,
)

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
UNFINISHED = "select id from yamlsched.job_runs where finished_at is null limit 1"
CONTENTION = (
    "select deadlocks, xact_rollback from pg_stat_database where datname = current_database()"
)


LOCK_WAITS = """
select count(*) from pg_stat_activity
where datname = current_database() and state = 'active' and wait_event_type = 'Lock'
"""
SESSIONS_OF_A_WORKER = 1  # an idle one holds one
READY_SECONDS = 1.0  # after which an idle worker has found nothing
SAMPLE_SECONDS = 0.02


def run(bench: Bench) -> None:
    for workers in bench.sizes.spike_workers:
        alternate(
            max(1, bench.repeat // 2),
            lambda w=workers: _measure(bench, w, bench.sizes.spike),
            lambda w=workers: _measure(bench, w, bench.sizes.large_spike),
            lambda w=workers: _measure(bench, w, bench.sizes.spike, are_slots=True),
        )


def _measure(bench: Bench, workers: int, count: int, are_slots: bool = False) -> None:
    ours = Yamlsched()
    with bench.database() as dsn:
        if are_slots:
            for host in range(workers):
                (ours.folder / str(host) / "schedules.yaml").write_text(schedule(count))
        ours.create(dsn)
        bench.vacuum(dsn)
        loops = [ours.start(dsn, host, None, "--loop") for host in range(workers)]
        try:
            _await_sessions(dsn, SESSIONS_OF_A_WORKER * workers)
            initial, server = _contention(dsn), server_cpu_seconds(dsn)
            client = sum(process_cpu_seconds(loop.pid) for loop in loops)
            with psycopg.connect(dsn) as connection:
                if are_slots:
                    connection.execute(SLOTS)
                    connection.execute("select pg_notify('yamlsched', 'default')")
                else:
                    ours.enqueue(dsn, "noop", count)
            waits = _await_end(dsn)
            server = server_cpu_seconds(dsn) - server
            client = sum(process_cpu_seconds(loop.pid) for loop in loops) - client
        finally:
            for loop in loops:
                loop.terminate()
            finish(loops)
        with psycopg.connect(dsn) as connection:
            done, attempts, seconds = connection.execute(OUTCOME).fetchone()
        deadlocks, rollbacks = (
            after - before for after, before in zip(_contention(dsn), initial, strict=True)
        )
    if (done, attempts) != (count, count):
        raise RuntimeError(
            f"{count} runs, {done} succeeded, {attempts} attempts: a run was lost or executed twice"
        )
    kind = "slots of as many jobs" if are_slots else "runs side by side"
    case = f"{count:,} {kind}, {workers} worker{'s' if workers > 1 else ''}"
    bench.add(PART, case, "yamlsched", "s", seconds, "each executed once", more_is_better=False)
    bench.add(
        PART,
        case,
        "yamlsched",
        "us of server CPU a run",
        server / count * 1e6,
        more_is_better=False,
    )
    bench.add(
        PART,
        case,
        "yamlsched",
        "us of worker CPU a run",
        client / count * 1e6,
        more_is_better=False,
    )
    bench.add(PART, case, "yamlsched", "sessions that wait for a lock", waits, more_is_better=False)
    bench.add(PART, case, "yamlsched", "deadlocks", deadlocks, more_is_better=False)
    bench.add(PART, case, "yamlsched", "rollbacks", rollbacks, more_is_better=False)


def _await_sessions(dsn: str, count: int) -> None:
    """Wait until the workers are idle, so that their start is not measured."""
    open_sessions = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with psycopg.connect(dsn, autocommit=True) as connection:
        end = time.monotonic() + TIMEOUT_SECONDS
        while connection.execute(open_sessions).fetchone()[0] < count:
            if time.monotonic() > end:
                raise RuntimeError("not all workers have started")
            time.sleep(0.1)
    time.sleep(READY_SECONDS)


def _await_end(dsn: str) -> float:
    """Wait until all runs have ended; return how many sessions waited for a lock meanwhile, on average."""
    waits = samples = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        end = time.monotonic() + TIMEOUT_SECONDS
        while connection.execute(UNFINISHED).fetchone() is not None:
            if time.monotonic() > end:
                raise RuntimeError("the workers do not finish")
            waits += connection.execute(LOCK_WAITS).fetchone()[0]
            samples += 1
            time.sleep(SAMPLE_SECONDS)
    return waits / max(1, samples)


def _contention(dsn: str) -> tuple[int, int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_stat_clear_snapshot()")
        counts: tuple[int, int] = connection.execute(CONTENTION).fetchone()
        return counts
