"""One handler that enqueues 100,000 and 1,000,000 runs, each with a key, while other runs are enqueued every 50 ms.

How long the others wait until their handlers start while the fan-out is written; the private memory at its peak of the
worker, of the handler's process and of the server's session; and how long it takes, beside bare inserts into the same
table in parts of the same size, and COPY.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import TIMEOUT_SECONDS, Bench

PART = "fanout"
GAP_SECONDS = 0.05
SAMPLE_SECONDS = 0.05
PER_STATEMENT = 1_000
COLUMNS = "(namespace, definition_id, job_type, payload, idempotency_key, run_at, max_attempts, parent_id)"
BARE = f"""
insert into yamlsched.job_runs {COLUMNS}
select 'default', %s, 'noop', jsonb_build_object('n', n), 'noop:' || n, clock_timestamp(), 5, 1
from generate_series(%s::int, %s::int) n
"""
FINISHED = """
select status, attempts, extract(epoch from finished_at - started_at)::float8 from yamlsched.job_runs where id = %s
"""
WRITER = """
select pid from pg_stat_activity
where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()
"""


def run(bench: Bench) -> None:
    for count in bench.sizes.fan_outs:
        case = f"{count:,} runs"
        for _ in range(bench.repeat):
            _measure(bench, case, count)
            _floor(bench, case, "bare inserts", count, _insert)
            _floor(bench, case, "COPY", count, _copy)


def _measure(bench: Bench, case: str, count: int) -> None:
    ours, file = Yamlsched(), bench.folder / "delays"
    file.unlink(missing_ok=True)
    with bench.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        ours.create(dsn)
        bench.vacuum(dsn)
        worker = ours.start_loop(dsn, file)
        try:
            ours.send(dsn, 1, 0)
            _await(lambda: file.exists())
            memory = Memory(worker.pid, dsn)
            [fan] = connection.execute(
                "select run_id from yamlsched.enqueue('fans_out', jsonb_build_object('count', %s::int))",
                (count,),
            ).fetchone()
            sent = []
            while (row := connection.execute(FINISHED, (fan,)).fetchone())[0] in (
                "queued",
                "running",
            ):
                ours.send(dsn, 1, GAP_SECONDS * 1000)
                sent.append(time.time())
            lines, now = file.read_text().splitlines()[1:], time.time()
            peaks = memory.peaks()
            if row[:2] != ("succeeded", 1):
                raise RuntimeError(f"the fan-out ended {row}")
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=TIMEOUT_SECONDS)
        # those that wait now are behind the runs of the fan-out, which are visible since a moment
        waiting = [(now - at) * 1000 for at in sent[len(lines) :]]
        delays = sorted([*(int(line) / 1000 for line in lines), *waiting])
        [made] = connection.execute(
            "select count(*) from yamlsched.job_runs where parent_id = %s", (fan,)
        ).fetchone()
        if made != count:
            raise RuntimeError(f"{made} of {count} runs were created")
    bench.add(
        PART, case, "yamlsched", "s for 100,000", row[2] / count * 100_000, more_is_better=False
    )
    for unit, value in [
        ("ms p50 of other runs", statistics.median(delays)),
        ("ms p99 of other runs", delays[int(len(delays) * 0.99)]),
        ("ms max of other runs", delays[-1]),
        *((f"MiB of the {what}", value) for what, value in peaks.items()),
    ]:
        bench.add(PART, case, "yamlsched", unit, value, more_is_better=False)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the worker does not execute other runs")
        time.sleep(0.05)


def _floor(
    bench: Bench, case: str, name: str, count: int, write: Callable[[Any, int, int], None]
) -> None:
    ours = Yamlsched()
    with bench.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        ours.create(dsn)
        bench.vacuum(dsn)
        [job] = connection.execute(
            "select id from yamlsched.job_definitions where job_type = 'noop'"
        ).fetchone()
        started = time.perf_counter()
        with connection.transaction():
            write(connection, job, count)
        seconds = time.perf_counter() - started
    bench.add(PART, case, name, "s for 100,000", seconds / count * 100_000, more_is_better=False)


def _insert(connection: Any, job: int, count: int) -> None:
    for start in range(0, count, PER_STATEMENT):
        connection.execute(BARE, (job, start, min(count, start + PER_STATEMENT) - 1))


def _copy(connection: Any, job: int, count: int) -> None:
    now = connection.execute("select clock_timestamp()::text").fetchone()[0]
    with connection.cursor().copy(f"copy yamlsched.job_runs {COLUMNS} from stdin") as copy:
        for n in range(count):
            copy.write_row(("default", job, "noop", f'{{"n": {n}}}', f"noop:{n}", now, 5, 1))


class Memory:
    """The private memory of the worker, its largest child, and the server's session that writes, at its peak."""

    def __init__(self, pid: int, dsn: str) -> None:
        self._pid, self._dsn = pid, dsn
        self._peaks = {"worker": 0.0, "handler's process": 0.0, "server's session": 0.0}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._is_over.wait(SAMPLE_SECONDS):
                self._note("worker", [self._pid])
                children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
                self._note("handler's process", map(int, children))
                self._note(
                    "server's session", [pid for (pid,) in connection.execute(WRITER).fetchall()]
                )

    def _note(self, what: str, pids: Any) -> None:
        self._peaks[what] = max([self._peaks[what], *map(private_mebibytes, pids)])

    def peaks(self) -> dict[str, float]:
        self._is_over.set()
        self._thread.join()
        return self._peaks


def private_mebibytes(pid: int) -> float:
    """Return the private memory of a process; 0 for one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ProcessLookupError):
        return 0.0
    return next(
        (
            int(line.split()[1]) / 1024
            for line in status.splitlines()
            if line.startswith("RssAnon:")
        ),
        0.0,
    )
