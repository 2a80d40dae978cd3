"""Executors: what an attempt on a Dask cluster costs beside a bare ``client.submit``, and how many attempts one worker
can have in flight: on a command template whose program starts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.harness import PYTHON, TIMEOUT_SECONDS, Bench

PART = "executors"
WATCHED_SECONDS = 10.0  # for which the processor time of attempts in flight is measured
HANDLER = "def run(): pass\n"


def run(bench: Bench) -> None:
    for _ in range(bench.repeat):
        with bench.database() as dsn:
            _hold(bench, dsn)
    with bench.database() as dsn:
        _compare(bench, dsn)


# -- in flight -----------------------------------------------------------------------------------------------------


def _hold(bench: Bench, dsn: str) -> None:
    count = bench.sizes.in_flight
    engine = {
        "type": "command",
        "command": ["sh", "-c", "exec sleep 3600"],
        "concurrency": count,
        "begin_within": "1h",
    }
    file = _prepare(bench, dsn, engine, count)
    started = time.monotonic()
    worker = subprocess.Popen(
        [PYTHON, "-m", "yamlsched", "-q", "work", "--file", file, "--dsn", dsn]
    )
    try:
        gateway = _await(lambda: _children(worker.pid), "a gateway")[0]
        _await(lambda: len(_children(gateway)) == count, f"{count} programs")
        case = f"{count:,} in flight"
        bench.add(
            PART,
            case,
            "yamlsched",
            "s until all are started",
            time.monotonic() - started,
            more_is_better=False,
        )
        before = _cpu_seconds(worker.pid), _cpu_seconds(gateway)
        time.sleep(WATCHED_SECONDS if count > 100 else 1.0)
        for name, pid, cpu in (("worker", worker.pid, before[0]), ("gateway", gateway, before[1])):
            used = (_cpu_seconds(pid) - cpu) / (WATCHED_SECONDS if count > 100 else 1.0)
            bench.add(
                PART, case, "yamlsched", f"MiB {name}", _resident_mib(pid), more_is_better=False
            )
            bench.add(
                PART, case, "yamlsched", f"% of a core, {name}", used * 100, more_is_better=False
            )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(TIMEOUT_SECONDS)


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(lines["VmRSS"].split()[0]) / 1024


# -- Dask ----------------------------------------------------------------------------------------------------------


def _compare(bench: Bench, dsn: str) -> None:
    try:
        from distributed import Client
    except ImportError:
        bench.not_measured(PART, "distributed is not installed", "on Dask")
        return
    count = bench.sizes.tasks
    with _cluster(bench, dsn) as address, Client(address, set_as_default=False) as client:
        for case, command in (("no-op", None), ("starting Python", [PYTHON, "-c", "pass"])):
            delays = []
            for _ in range(count):
                started = time.monotonic()
                function, *words = (subprocess.check_call, command) if command else (int,)
                client.submit(function, *words, pure=False).result()
                delays.append(time.monotonic() - started)
            value = statistics.median(delays) * 1000
            bench.add(
                PART,
                "one at a time",
                f"client.submit, {case}",
                "ms p50",
                value,
                more_is_better=False,
            )
        for concurrency in (1, 16):
            engine = {"type": "dask", "address": address, "concurrency": concurrency}
            file = _prepare(bench, dsn, engine, count)
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            words = ["-m", "yamlsched", "-q", "work", "--file", str(file), "--dsn", dsn]
            subprocess.run([PYTHON, *words], check=True, timeout=TIMEOUT_SECONDS, env=environment)
            _report(bench, dsn, concurrency)


def _report(bench: Bench, dsn: str, concurrency: int) -> None:
    with psycopg.connect(dsn) as connection:
        rows: list[Any] = connection.execute(
            "select extract(epoch from b.begun_at - r.started_at)::float8, extract(epoch from b.ended_at - b.begun_at)"
            "::float8, extract(epoch from r.finished_at - b.ended_at)::float8, r.started_at, r.finished_at"
            " from yamlsched.job_runs r join yamlsched.attempt_begins b on b.run_id = r.id where r.status = 'succeeded'"
            " order by r.started_at"
        ).fetchall()
    if concurrency > 1:
        seconds = (max(row[4] for row in rows) - min(row[3] for row in rows)).total_seconds()
        bench.add(
            PART,
            f"{concurrency} at once, 2 threads",
            "yamlsched",
            "attempts/s",
            len(rows) / seconds,
        )
        return
    rows = rows[1:]  # the first one waits for the gateway to load Dask
    for name, index in (("claim to begin", 0), ("begin to outcome", 1), ("outcome to finish", 2)):
        value = statistics.median(row[index] for row in rows) * 1000
        bench.add(
            PART, f"one at a time: {name}", "yamlsched", "ms p50", value, more_is_better=False
        )
    whole = statistics.median(sum(row[:3]) for row in rows) * 1000
    bench.add(PART, "one at a time", "yamlsched", "ms p50", whole, more_is_better=False)


@contextlib.contextmanager
def _cluster(bench: Bench, dsn: str) -> Iterator[str]:
    """Yield the address of a scheduler with one Dask worker of two threads."""
    file = bench.folder / "scheduler.json"
    environment = {**os.environ, "YAMLSCHED_DSN": dsn}
    common = ["--no-dashboard", "--scheduler-file", str(file)]
    words = (
        ["scheduler", "--host", "127.0.0.1", "--port", "0", *common],
        [
            "worker",
            "--nthreads",
            "2",
            "--no-nanny",
            "--local-directory",
            str(bench.folder),
            *common,
        ],
    )
    processes = [
        subprocess.Popen(
            [PYTHON, "-m", "dask", *each],
            cwd=_folder(bench),
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for each in words
    ]
    try:
        _await(file.exists, "a scheduler")
        yield json.loads(file.read_text())["address"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)


def _folder(bench: Bench) -> Path:
    folder = bench.folder / PART
    folder.mkdir(exist_ok=True)
    (folder / "noop.py").write_text(HANDLER)
    return folder


def _prepare(bench: Bench, dsn: str, engine: dict[str, Any], count: int) -> Path:
    """Apply a schedule with one job on ``engine``, and enqueue ``count`` runs of it."""
    file = _folder(bench) / "schedules.yaml"
    job = {"handler": "noop.run", "executor": "engine"}
    file.write_text(
        json.dumps({"version": 1, "executors": {"engine": engine}, "jobs": {"noop": job}})
    )
    for words in (["migrate"], ["sync", "--file", str(file)]):
        subprocess.run(
            [PYTHON, "-m", "yamlsched", "-q", *words, "--dsn", dsn],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    with psycopg.connect(dsn) as connection:
        connection.execute("delete from yamlsched.job_runs")
        connection.execute("select yamlsched.enqueue('noop') from generate_series(1, %s)", [count])
    return file


def _await(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not start")
        time.sleep(0.02)
    return found
