"""yamlsched, through its command line. Its results are read from the database."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psycopg

import yamlsched
from benchmarks.contenders.base import Drained
from benchmarks.harness import PYTHON, ROOT, finish, run

SCHEDULES = """\
version: 1
jobs:
  noop: {handler: bench_handlers.noop}
  nap: {handler: bench_handlers.nap}
  arrive: {handler: bench_handlers.arrive}
  stays: {handler: bench_handlers.stays}
  awaits: {handler: bench_handlers.awaits}
  fails_once: {handler: bench_handlers.fails_once, max_attempts: 2, backoff: {policy: fixed, delay: 1s, jitter: 0}}
  fails: {handler: bench_handlers.fails, max_attempts: 1}
  fans_out: {handler: bench_handlers.fans_out}
"""
SHARED = """\
  shares: {{handler: bench_handlers.awaits, queue: shared}}
queues: {{shared: {{mode: async, concurrency: {}}}}}
"""  # claimed on its own, at a cost to others
HANDLERS = """\
import asyncio
import os
import time


def noop(n):
    pass


def nap(n):
    time.sleep(0.01)


def fails(n):
    raise ValueError("no route to host")


def fails_once(run, n):
    if run.attempt == 1:
        raise ValueError("no route to host")


async def awaits(n):
    await asyncio.sleep(0.1)


def fans_out(run, count):
    run.enqueue_many("noop", ({"n": n} for n in range(count)), keys=(f"noop:{n}" for n in range(count)))


def arrive(sent):
    descriptor = os.open(os.environ["BENCH_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"%d\\n" % (time.time_ns() // 1000 - sent))
    os.close(descriptor)


def stays(sent):
    arrive(sent)
    time.sleep(600)
"""
# By the database's clock, from the first claim to the last written outcome.
DRAINED = """
select count(*), extract(epoch from max(finished_at) - min(started_at))::float8, max(attempts),
       count(*) filter (where status <> 'succeeded')
from yamlsched.job_runs where finished_at > %s
"""


def command(*words: str) -> list[str]:
    return [PYTHON, "-m", "yamlsched", *words]


@dataclass
class Yamlsched:
    name: str = "yamlsched"
    note: str = "yamlsched work, handlers in child processes; rows kept"
    needs: str = ""
    max_jobs: int | None = None
    single_worker: bool = False
    schedules: str = SCHEDULES
    command_seconds: float = field(default=0.0, init=False)  # of the last drain, from start to exit
    pids: list[int] = field(default_factory=list, init=False)  # of the workers that were started

    def check(self) -> None: ...

    @cached_property
    def folder(self) -> Path:
        """A folder per host: workers of one file on one host share its concurrency limit."""
        self._folder = tempfile.TemporaryDirectory(prefix="yamlsched-bench-")
        for host in range(16):
            folder = Path(self._folder.name) / str(host)
            folder.mkdir()
            (folder / "schedules.yaml").write_text(self.schedules)
            (folder / "bench_handlers.py").write_text(HANDLERS)
        return Path(self._folder.name)

    def prepare(self, dsn: str, count: int) -> None:
        self.create(dsn)
        self.enqueue(dsn, "noop", count)

    def create(self, dsn: str) -> None:
        run(command("migrate", "--dsn", dsn), cwd=self.folder / "0", env=self.environment(dsn))
        run(command("sync", "-q", "--dsn", dsn), cwd=self.folder / "0", env=self.environment(dsn))

    def enqueue(self, dsn: str, job: str, count: int) -> None:
        with psycopg.connect(dsn) as connection:
            for start in range(0, count, 10_000):
                payloads = [{"n": n} for n in range(start, min(count, start + 10_000))]
                yamlsched.enqueue_many(connection, job, payloads)

    def drain(
        self,
        dsn: str,
        workers: int,
        concurrency: int | None = None,
        ms: int = 0,
        job: str = "nap",
        *words: str,
    ) -> Drained:
        """Execute everything. With ``ms``, the runs become those of ``job``, whose handler takes a time of its own."""
        with psycopg.connect(dsn) as connection:
            if ms:
                connection.execute(
                    "update yamlsched.job_runs r set job_type = d.job_type, definition_id = d.id, queue = d.queue "
                    "from yamlsched.job_definitions d where d.job_type = %(job)s and r.finished_at is null",
                    {"job": job},
                )
            started_at = connection.execute("select clock_timestamp()").fetchone()[0]
        started = time.perf_counter()
        finish([self.start(dsn, host, concurrency, *words) for host in range(workers)])
        self.command_seconds = time.perf_counter() - started
        with psycopg.connect(dsn) as connection:
            runs, seconds, attempts, others = connection.execute(DRAINED, (started_at,)).fetchone()
        if attempts != 1 or others:
            raise RuntimeError(f"{others} runs did not succeed, and one had {attempts} attempts")
        return Drained(runs, seconds)

    def start(
        self, dsn: str, host: int = 0, concurrency: int | None = None, *words: str
    ) -> subprocess.Popen[str]:
        """Start a worker as if on the host with this number."""
        more = ["--concurrency", str(concurrency)] if concurrency else []
        worker = subprocess.Popen(
            command("work", "-q", "--dsn", dsn, *more, *words),
            cwd=self.folder / str(host),
            env=self.environment(dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids.append(worker.pid)
        return worker

    def start_loop(self, dsn: str, file: Path, *words: str) -> subprocess.Popen[str]:
        return self._start_with(dsn, file, "--loop", *words)

    def start_once(self, dsn: str, file: Path) -> subprocess.Popen[str]:
        return self._start_with(dsn, file)

    def _start_with(self, dsn: str, file: Path, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command("work", *words, "-q", "--dsn", dsn),
            cwd=self.folder / "0",
            env={**self.environment(dsn), "BENCH_FILE": str(file)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def send(self, dsn: str, count: int, gap_ms: float) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(count):
                time.sleep(gap_ms / 1000)
                yamlsched.enqueue(connection, "arrive", {"sent": time.time_ns() // 1000})

    def once_command(self, dsn: str) -> list[str]:
        return command("tick", "--dsn", dsn, "--file", str(self.folder / "0/schedules.yaml"))

    def environment(self, dsn: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("YAMLSCHED_")
        }
        return {**kept, "PYTHONPATH": str(ROOT)}
