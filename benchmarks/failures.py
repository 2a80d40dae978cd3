"""Failing work: runs that all fail for good, and runs that fail once and then succeed.

Measured: attempts a second, the WAL and the space that each failed attempt leaves behind after a vacuum, and, for
yamlsched, the lines on stderr. Contenders measure their time as in ``drain``. Retries are as soon as each allows.
"""

from __future__ import annotations

import os

import psycopg

from benchmarks.contenders.base import Contender, usable
from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import TIMEOUT_SECONDS, Bench, alternate, server_cpu_seconds

PART = "failures"
CASES = {"always": "all fail for good", "once": "each fails once, then succeeds"}
NOT_COMPARED = (
    "apscheduler",
    "dbos",
)  # one logs a failed job and drops it, the other keeps failures inside of workflows
ONCE = (
    "yamlsched",
    "bare loop",
    "graphile-worker",
    "pg-boss",
)  # the others retry later, or not by themselves
NOTES = {
    "graphile-worker": "its retry comes 2.7 s later, and these are in its time",
    "pgqueuer": "a failed job is moved to its log",
}
SPENT = "select pg_current_wal_lsn() - '0/0'::pg_lsn, (select sum(pg_relation_size(oid)) from pg_class where oid >= 16384)"
# A run keeps the start of its last attempt only; a failure has that of its own.
DRAINED = """
select sum(r.attempts),
       extract(epoch from max(r.finished_at) - least(min(r.started_at),
                                                     (select min(f.started_at) from yamlsched.job_failures f)))::float8,
       (select count(*) from yamlsched.job_failures)
from yamlsched.job_runs r
"""


def run(bench: Bench) -> None:
    available, missing = usable(c for c in bench.contenders if c.name not in NOT_COMPARED)
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for fails in CASES:
        chosen = [c for c in available if fails == "always" or c.name in ONCE]
        alternate(bench.repeat, *[_measure(bench, contender, fails) for contender in chosen])


def _measure(bench: Bench, contender: Contender, fails: str):
    count = min(bench.sizes.failures, contender.max_jobs or bench.sizes.failures)
    case = f"{bench.sizes.failures:,} runs, {CASES[fails]}"
    notes = [
        NOTES.get(contender.name),
        f"measured on {count:,} runs" if count < bench.sizes.failures else None,
    ]
    note = "; ".join(filter(None, [contender.note, *notes]))

    def measure() -> None:
        os.environ["BENCH_FAILS"] = fails
        try:
            with bench.database() as dsn:
                contender.prepare(dsn, count)
                if isinstance(contender, Yamlsched):
                    _assign(dsn, "fails" if fails == "always" else "fails_once")
                bench.vacuum(dsn)
                before = _spent(dsn)
                if isinstance(contender, Yamlsched):
                    attempts, seconds = _drain(bench, contender, dsn, case)
                else:
                    drained = contender.drain(dsn, 1)
                    attempts, seconds = drained.runs, drained.seconds
                expected = count if fails == "always" else 2 * count
                if attempts != expected:
                    raise RuntimeError(f"{contender.name} made {attempts} attempts, not {expected}")
                bench.vacuum(dsn)
                wal, size = (
                    after - start for after, start in zip(_spent(dsn), before, strict=True)
                )
        finally:
            del os.environ["BENCH_FAILS"]
        bench.add(PART, case, contender.name, "attempts/s", attempts / seconds, note)
        bench.add(
            PART,
            case,
            contender.name,
            "bytes of WAL an attempt",
            wal / attempts,
            "",
            more_is_better=False,
        )
        bench.add(
            PART,
            case,
            contender.name,
            "bytes kept a failure",
            size / count,
            "",
            more_is_better=False,
        )

    return measure


def _assign(dsn: str, job: str) -> None:
    """Make the runs those of ``job``."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update yamlsched.job_runs r "
            "set job_type = d.job_type, definition_id = d.id, max_attempts = d.max_attempts "
            "from yamlsched.job_definitions d where d.job_type = %s",
            (job,),
        )


def _drain(bench: Bench, contender: Yamlsched, dsn: str, case: str) -> tuple[int, float]:
    server_before = server_cpu_seconds(dsn)
    worker = contender.start(dsn, 0)
    _, errors = worker.communicate(timeout=TIMEOUT_SECONDS)
    server = server_cpu_seconds(dsn) - server_before
    with psycopg.connect(dsn) as connection:
        attempts, seconds, failures = connection.execute(DRAINED).fetchone()
    bench.add(
        PART,
        case,
        contender.name,
        "lines on stderr a failure",
        errors.count("\n") / failures,
        "",
        False,
    )
    bench.add(
        PART,
        case,
        contender.name,
        "us of server CPU an attempt",
        server / attempts * 1e6,
        "",
        False,
    )
    return int(attempts), seconds


def _spent(dsn: str) -> tuple[int, int]:
    with psycopg.connect(dsn) as connection:
        wal, size = connection.execute(SPENT).fetchone()
        return int(wal), int(size)
