"""Backlogs that a worker may not claim: paused, of jobs that its file lacks, waiting for a retry, due in the future.

Measured beside each of them and without, by turns: what single runs that are enqueued one after the other cost until
they start, and what an idle ``work --loop`` and the server's processes for its sessions use in a minute. That includes
one sync by its helper process, but not what the server uses for the session of the sync, which ends with it.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

import yamlsched
from benchmarks.contenders.yamlsched_ import HANDLERS, Yamlsched, command
from benchmarks.harness import Bench, alternate, process_cpu_seconds, session_cpu_seconds
from benchmarks.harness import run as run_command

PART = "held"
SINGLES = 50
SCHEDULES = """\
version: 1
jobs:
  noop: {handler: bench_handlers.noop}
  held: {handler: bench_handlers.noop}
"""
JOBS = """
insert into yamlsched.job_definitions
    (namespace, job_type, handler, timezone, max_attempts, backoff, timeout, lease, overlap, catchup, catchup_window,
     spread, enabled, effective_from, retired_at)
select namespace, 'other_' || n, handler, timezone, max_attempts, backoff, timeout, lease, overlap, catchup,
       catchup_window, spread, true, effective_from, case when %s then now() end
from yamlsched.job_definitions, generate_series(1, %s) n
where job_type = 'held'
"""
RUNS = """
insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive, status, attempts)
select d.namespace, d.id, d.job_type, now() + %(at)s::interval, 5, %(exclusive)s,
       case when %(is_retry)s then 'failed' else 'queued' end, %(is_retry)s::int
from yamlsched.job_definitions d, generate_series(1, %(runs)s) n
where d.job_type like %(jobs)s
"""
PAUSE = "update yamlsched.job_definitions set paused_at = now() where job_type = 'held'"
STARTED = """
select extract(epoch from started_at - created_at)::float8 from yamlsched.job_runs
where id = %s and finished_at is not null
"""
CLAIMED = (
    "select id from yamlsched.job_runs where job_type <> 'noop' and started_at is not null limit 1"
)
Fill = Callable[[psycopg.Connection[Any], int, int], None]


def _paused(exclusive: bool) -> Fill:
    def fill(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
        connection.execute(PAUSE)
        _add_runs(connection, "held", runs, exclusive=exclusive)

    return fill


def _future(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
    _add_runs(connection, "held", runs, at="1 day")


def _lacking(exclusive: bool) -> Fill:
    def fill(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
        _add_runs(connection, "newer%", 1, exclusive=exclusive)

    return fill


def _lacking_one(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
    _add_runs(connection, "newer_0", runs)


def _jobs(is_retired: bool, **values: Any) -> Fill:
    def fill(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
        connection.execute(JOBS, (is_retired, jobs))
        _add_runs(connection, "other%", 1, **values)

    return fill


def _own_paused(exclusive: bool) -> Fill:
    def fill(connection: psycopg.Connection[Any], runs: int, jobs: int) -> None:
        connection.execute(
            "update yamlsched.job_definitions set paused_at = now() where job_type like 'own%'"
        )
        _add_runs(connection, "own%", 1, exclusive=exclusive)

    return fill


def _add_runs(
    connection: psycopg.Connection[Any],
    jobs: str,
    runs: int,
    at: str = "-1 hour",
    exclusive: bool = False,
    is_retry: bool = False,
) -> None:
    given = {"jobs": jobs, "runs": runs, "at": at, "exclusive": exclusive, "is_retry": is_retry}
    connection.execute(RUNS, given)


OWN = "paused jobs of its file"  # in the name of a case: the file has these jobs
LACKS = "that the file lacks"  # these are jobs of a newer file, which another host has applied
CASES: dict[str, Fill] = {
    "none": lambda connection, runs, jobs: None,
    "{runs:,} paused runs": _paused(exclusive=False),
    "{runs:,} paused slot runs": _paused(exclusive=True),
    f"{{runs:,}} runs of a job {LACKS}": _lacking_one,
    "{runs:,} runs due tomorrow": _future,
    "{jobs:,} jobs, each waiting for a retry": _jobs(
        False, at="1 hour", exclusive=True, is_retry=True
    ),
    "{jobs:,} retired jobs, each with a slot run": _jobs(True, exclusive=True),
    f"{{jobs:,}} jobs {LACKS}, each with a slot run": _lacking(exclusive=True),
    f"{{jobs:,}} jobs {LACKS}, each with a run": _lacking(exclusive=False),
    f"{{jobs:,}} {OWN}, each with a run": _own_paused(exclusive=False),
    f"{{jobs:,}} {OWN}, each with a slot run": _own_paused(exclusive=True),
}


def run(bench: Bench) -> None:
    medians: dict[str, float] = {}
    alternate(
        bench.repeat,
        *[
            lambda name=name, fill=fill: _measure(bench, name, fill, medians)
            for name, fill in CASES.items()
        ],
    )


def _measure(bench: Bench, name: str, fill: Fill, medians: dict[str, float]) -> None:
    sizes, ours = bench.sizes, Yamlsched()
    case = name.format(runs=sizes.held_runs, jobs=sizes.held_jobs)
    folder, newer = bench.folder / "held", bench.folder / "held-newer"
    for place, kind, is_there in ((folder, "own", OWN in name), (newer, "newer", LACKS in name)):
        place.mkdir(exist_ok=True)
        jobs = [
            f"  {kind}_{n}: {{handler: bench_handlers.noop}}\n"
            for n in range(sizes.held_jobs if is_there else 0)
        ]
        (place / "schedules.yaml").write_text(SCHEDULES + "".join(jobs))
        (place / "bench_handlers.py").write_text(HANDLERS)
    with bench.database() as dsn:
        run_command(command("migrate", "--dsn", dsn), cwd=folder, env=ours.environment(dsn))
        for place in (folder, newer) if LACKS in name else (folder,):
            run_command(command("sync", "-q", "--dsn", dsn), cwd=place, env=ours.environment(dsn))
        with psycopg.connect(dsn) as connection:
            fill(connection, sizes.held_runs, sizes.held_jobs)
        bench.vacuum(dsn)
        with _worker(ours, dsn, folder) as pid, psycopg.connect(dsn, autocommit=True) as connection:
            _enqueue(connection)  # the first one waits for the start
            server, worker, started = (
                session_cpu_seconds(dsn),
                process_cpu_seconds(pid),
                time.monotonic(),
            )
            time.sleep(sizes.held_seconds)
            minutes = (time.monotonic() - started) / 60
            server, worker = session_cpu_seconds(dsn) - server, process_cpu_seconds(pid) - worker
            bench.add(
                PART,
                f"idle, {case}",
                "server",
                "CPU s a minute",
                server / minutes,
                "",
                more_is_better=False,
            )
            bench.add(
                PART,
                f"idle, {case}",
                "yamlsched",
                "CPU s a minute",
                worker / minutes,
                "",
                more_is_better=False,
            )
            server = session_cpu_seconds(dsn)
            delays = [_enqueue(connection) for _ in range(SINGLES)]
            server = session_cpu_seconds(dsn) - server
            if connection.execute(CLAIMED).fetchone() is not None:
                raise RuntimeError(f"{case}: a run was claimed that may not be")
    medians[name] = statistics.median(delays) * 1000
    bench.add(
        PART,
        f"single runs, {case}",
        "yamlsched",
        "ms to start",
        medians[name],
        "",
        more_is_better=False,
    )
    bench.add(
        PART,
        f"single runs, {case}",
        "server",
        "CPU ms a run",
        server / SINGLES * 1000,
        "",
        more_is_better=False,
    )
    if name != "none":
        ratio = medians[name] / medians["none"]
        bench.add(
            PART,
            f"single runs, {case}",
            "yamlsched",
            "x that without",
            ratio,
            "target 2",
            more_is_better=False,
        )


@contextlib.contextmanager
def _worker(ours: Yamlsched, dsn: str, folder: Path) -> Iterator[int]:
    worker = subprocess.Popen(
        command("work", "--loop", "-q", "--dsn", dsn),
        cwd=folder,
        env=ours.environment(dsn),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield worker.pid
    finally:
        worker.terminate()
        worker.wait()


def _enqueue(connection: psycopg.Connection[Any]) -> float:
    """Enqueue a run, wait until it has ended, and return the seconds until it started."""
    with connection.transaction():
        run_id = yamlsched.enqueue(connection, "noop", {"n": 1}).run_id
    end = time.monotonic() + 60
    while (found := connection.execute(STARTED, (run_id,)).fetchone()) is None:
        if time.monotonic() > end:
            raise RuntimeError("a run was not executed within a minute")
        time.sleep(0.01)
    return float(found[0])
