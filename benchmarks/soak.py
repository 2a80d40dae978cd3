"""A long-running worker with steady enqueueing and pruning, to find what grows. Runs only if it is named.

A sample every few seconds has: runs executed, runs that wait, memory of the worker and of its children (proportional
set size), size of the table, its indexes and the rest of the database. Autovacuum is on, and the worker prunes runs
after minutes. The table fills up in the first quarter of the time. The second and the last quarter are compared.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

import psycopg

import yamlsched
from benchmarks.contenders.yamlsched_ import SCHEDULES, Yamlsched
from benchmarks.harness import Bench

PART = "soak"
RATE = 300  # runs enqueued each second
RETENTION = "retention: {succeeded: 5m}\n"
MAX_SAMPLES = 720
MIN_SAMPLE_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class Sample:
    """One sample, ``at`` seconds after the start. Memory and sizes are in MiB, ``executed`` is in runs/s."""

    at: float
    executed: float
    waiting: int
    parent: float
    children: float
    table: float
    indexes: float
    rest: float


def run(bench: Bench) -> None:
    seconds = bench.sizes.soak_minutes * 60
    ours = Yamlsched()
    file = ours.folder / "0" / "schedules.yaml"
    file.write_text(SCHEDULES.replace("jobs:", f"{RETENTION}jobs:"))
    with bench.database() as dsn:
        ours.create(dsn)
        worker = ours.start_loop(dsn, bench.folder / "delays")
        try:
            samples = take_samples(dsn, worker, seconds)
        finally:
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=60)
        with psycopg.connect(dsn, autocommit=True) as connection:
            [others, attempts] = connection.execute(
                "select count(*) filter (where status <> 'succeeded'), max(attempts) from yamlsched.job_runs"
            ).fetchone()
    if worker.returncode or others or attempts != 1:
        raise RuntimeError(
            f"{others} runs did not succeed, one had {attempts} attempts; {errors[-2000:]}"
        )
    add_rows(bench, samples)
    write(bench.results, samples)


def take_samples(dsn: str, worker: subprocess.Popen[str], seconds: float) -> list[Sample]:
    """Enqueue ten times a second, and take samples."""
    started = time.monotonic()
    pause = max(MIN_SAMPLE_INTERVAL_SECONDS, seconds / MAX_SAMPLES)
    samples: list[Sample] = []
    enqueued, sampled, sampled_at = 0, 0, started
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (now := time.monotonic()) < started + seconds:
            if worker.poll() is not None:
                raise RuntimeError(f"the worker has ended: {worker.communicate()[1][-2000:]}")
            missing = int((now - started) * RATE) - enqueued
            yamlsched.enqueue_many(
                connection, "noop", [{"n": n} for n in range(enqueued, enqueued + missing)]
            )
            enqueued += missing
            if now >= sampled_at + pause:
                sizes = read_sizes(connection)
                done = enqueued - sizes["waiting"]
                memory = {
                    "parent": pss(worker.pid),
                    "children": sum(map(pss, children(worker.pid))),
                }
                samples.append(
                    Sample(now - started, (done - sampled) / (now - sampled_at), **memory, **sizes)
                )
                sampled, sampled_at = done, now
            time.sleep(max(0.0, 0.1 - (time.monotonic() - now)))
        deadline = time.monotonic() + 60
        while read_sizes(connection)["waiting"] and time.monotonic() < deadline:
            time.sleep(0.1)
    return samples


def read_sizes(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    row = connection.execute(
        "select (select count(*) from yamlsched.job_runs where finished_at is null and not exclusive), "
        "pg_relation_size('yamlsched.job_runs') / 1048576.0, pg_indexes_size('yamlsched.job_runs') / 1048576.0, "
        "(pg_database_size(current_database()) - pg_total_relation_size('yamlsched.job_runs')) / 1048576.0"
    ).fetchone()
    return dict(
        zip(
            ("waiting", "table", "indexes", "rest"),
            (int(row[0]), *map(float, row[1:])),
            strict=True,
        )
    )


def pss(pid: int) -> float:
    """Return a process's proportional set size: the size of a shared page is divided among its processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0  # the process has ended
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def quarters(samples: list[Sample], name: str) -> tuple[float, float]:
    """Return the medians of the second and the last quarter."""
    values = [getattr(sample, name) for sample in samples]
    quarter = max(1, len(values) // 4)
    return statistics.median(values[quarter : 2 * quarter] or values), statistics.median(
        values[-quarter:]
    )


def add_rows(bench: Bench, samples: list[Sample]) -> None:
    units = {"executed": "runs/s", "waiting": "runs"}
    case = f"{bench.sizes.soak_minutes:g} minutes, {RATE} runs/s enqueued"
    for name in (field.name for field in fields(Sample) if field.name != "at"):
        before, after = quarters(samples, name)
        note = f"last quarter; second quarter {before:,.4g}"
        unit = f"{name.replace('_', ' ')} {units.get(name, 'MiB')}"
        bench.add(PART, case, "yamlsched", unit, after, note, more_is_better=name == "executed")


def write(folder: Path | None, samples: list[Sample]) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak-samples.json").write_text(
        json.dumps(
            [
                {name: round(value, 2) for name, value in asdict(sample).items()}
                for sample in samples
            ]
        )
        + "\n"
    )
    (folder / "soak.svg").write_text(plot(samples))


def plot(samples: list[Sample]) -> str:
    """Return an SVG with a line for each field of the samples, each from zero to its largest value."""
    width, height, left = 560, 56, 150
    parts, y = [], 34
    for name in (field.name for field in fields(Sample) if field.name != "at"):
        values = [getattr(sample, name) for sample in samples]
        largest, last = max(values) or 1, samples[-1].at or 1
        points = " ".join(
            f"{left + width * sample.at / last:.1f},{y + height - height * value / largest:.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        unit = {"executed": "runs/s", "waiting": "runs"}.get(name, "MiB")
        parts.append(
            f'<text x="8" y="{y + 14}">{escape(name.replace("_", " "))}, {unit}</text>'
            f'<text x="8" y="{y + 32}" fill="#777">0 to {largest:,.4g}</text>'
            f'<polyline points="{points}" fill="none" stroke="#2166ac"/>'
            f'<line x1="{left}" y1="{y + height}" x2="{left + width}" y2="{y + height}" stroke="#bbb"/>'
        )
        y += height + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{y + 8}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="20" font-size="14">{samples[-1].at / 60:.0f} minutes, {RATE} runs/s enqueued</text>'
        + "".join(parts)
        + "</svg>\n"
    )
