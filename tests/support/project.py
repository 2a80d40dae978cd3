"""A project with a schedule and a database, real processes of yamlsched, and the results of runs and handlers."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from support.fork_server import IMMEDIATE
from support.schedules import sync_by_hand
from yamlsched import db as store
from yamlsched.db.connection import connect_for_handler
from yamlsched.schedule import schema
from yamlsched.schedule.include import patterns
from yamlsched.sync.files import ScheduleFile

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 120.0  # how long to wait for a condition


def until(condition: Callable[[], Any], what: str = "", seconds: float | None = None) -> Any:
    """Wait until ``condition`` returns a true value, and return that value."""
    deadline = time.monotonic() + (seconds or TIMEOUT_SECONDS)
    pause = 0.01
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"timed out: {what or condition}"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)  # most conditions are queries, which cost what is waited for
    return answer


class ForkServer:
    """A process that starts others; see fork_server.py. ``before`` are the words of a program that starts it."""

    shared: ClassVar[ForkServer | None] = None
    """The one of all projects of this process: each would import everything that ``yamlsched`` does."""

    def __init__(
        self,
        before: Sequence[str] = (),
        words: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, str(TESTS / "support" / "fork_server.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._environment = environment or {}
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, pid, *status = line.split()
            with self._changed:
                if what == "started":
                    self._started.append(int(pid))
                    self._ended.pop(int(pid), None)  # of an earlier process with the same id
                else:
                    self._ended[int(pid)] = int(status[0])
                self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    def of_all(cls) -> ForkServer:
        if cls.shared is None:
            cls.shared = cls()
            atexit.register(cls.shared.close)
        return cls.shared

    def start(self, env: dict[str, str], cwd: Path | None = None, **command: Any) -> int:
        """Start a process in this one's environment, with the variables ``env``, and return its id."""
        env = {**os.environ, **self._environment, **env}
        with self._changed:
            count = len(self._started)
            self._write({**command, "env": env, "cwd": str(cwd or Path.cwd())})
            assert self._changed.wait_for(lambda: len(self._started) > count, TIMEOUT_SECONDS)
            return self._started[count]

    def code(self, pid: int, timeout: float | None) -> int | None:
        """Return the exit code of a process, None while it is alive; a negative code is the signal that killed it."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended, timeout)
            return self._ended.get(pid)

    def kill(self, pids: Sequence[int]) -> None:
        """Kill those of the processes that have not ended, and wait for their end."""
        if alive := [pid for pid in pids if self.code(pid, 0) is None]:
            self._write({"kill": alive})
            for pid in alive:
                assert self.code(pid, TIMEOUT_SECONDS) is not None

    def _write(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@dataclass
class Process:
    """A running ``yamlsched`` command."""

    fork_server: ForkServer
    pid: int
    log: Path

    def wait(self, seconds: float = TIMEOUT_SECONDS) -> int:
        code = self.fork_server.code(self.pid, seconds)
        assert code is not None, f"still running: {self.text[-2000:]}"
        return code

    @property
    def is_alive(self) -> bool:
        return self.fork_server.code(self.pid, 0) is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def children(self) -> list[int]:
        """Return its living child processes."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    @property
    def text(self) -> str:
        """What it has written to stderr."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


@dataclass
class Project:
    """A folder with schedules.yaml, of which ``jobs`` are the jobs (handlers in support/handlers.py), on a database."""

    fork_server: ForkServer
    folder: Path
    dsn: str
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, int | dict[str, Any]] = field(default_factory=dict)
    """A number is that of a limit which counts all runs together."""
    queues: dict[str, dict[str, Any]] = field(default_factory=lambda: {"shared": {"mode": "async"}})
    notify: dict[str, dict[str, Any]] = field(default_factory=dict)
    number: int = 0
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.db = connect_for_handler(self.dsn)

    @property
    def file(self) -> Path:
        return self.folder / "schedules.yaml"

    def write(self, **jobs: dict[str, Any]) -> None:
        """Write the schedule. By default, jobs have short leases and retries without a delay."""
        defaults = {"lease": "2s", "backoff": {"policy": "fixed", "delay": "0s", "max_delay": "1s"}}
        self.jobs = jobs
        entries = {
            name: {
                **({} if "command" in job else {"handler": f"support.handlers.{name}"}),
                **defaults,
                **job,
            }
            for name, job in jobs.items()
        }
        limits = {
            name: {"max": limit} if isinstance(limit, int) else limit
            for name, limit in self.limits.items()
        }
        settings = {"limits": limits, "queues": self.queues, "notify": self.notify}
        self.file.write_text(json.dumps({"version": 1, **settings, "jobs": entries}))

    def sync(self, **jobs: dict[str, Any]) -> None:
        """Write the schedule and apply it, without checking the handlers."""
        self.write(**jobs)
        with store.connect(self.dsn) as connection, patch.dict(schema.LIMITS, IMMEDIATE):
            synced = sync_by_hand(
                connection, ScheduleFile.read(self.file, None, None, find_patterns=patterns)
            )
        assert not synced.messages, synced.messages

    def enqueue(self, job: str, payload: dict[str, Any] | None = None, count: int = 1) -> list[int]:
        """Enqueue runs and return their ids."""
        rows = self.db.execute(
            "select run_id from yamlsched.enqueue_many(%s, array(select %s::jsonb from generate_series(1, %s)))",
            [job, json.dumps(payload or {}), count],
        )
        return [row.run_id for row in rows]

    def start(
        self, *words: str, dsn: str | None = None, before: str = "", host: str = "a", **env: str
    ) -> Process:
        """Start ``yamlsched *words`` on this project, as if on a host of that name.

        ``before`` is a statement that the process executes first.
        """
        self.number += 1
        log = self.folder / f"log-{self.number}"
        verb, *rest = words
        argv = [verb, "--file", str(self.file), "--dsn", dsn or self.dsn, *rest]
        if verb in ("work", "tick"):
            argv += ["--path", str(TESTS)]
        (slots := self.folder / f"host-{host}").mkdir(exist_ok=True)
        settings = {"TEST_FOLDER": str(self.folder), "TMPDIR": str(slots), **env}
        pid = self.fork_server.start(
            argv=argv,
            env=settings,
            stdout=str(self.folder / f"out-{self.number}"),
            stderr=str(log),
            before=before,
        )
        self.pids.append(pid)
        return Process(self.fork_server, pid, log)

    def work(self, *words: str, code: int = 0, **more: Any) -> Process:
        """Run a worker until the queue is empty, and check its exit code."""
        process = self.start("work", *words, **more)
        assert process.wait() == code, f"{process.wait()} {process.text[-3000:]}"
        # what it has sent last, such as a renewal of its leases, may not be executed yet
        if code == -signal.SIGKILL:
            sessions = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            until(lambda: not self.db.execute(sessions).fetchall())
        return process

    def end_leases(self) -> None:
        """Expire all leases, as happens after their workers have died."""
        self.db.execute(
            "update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'"
        )

    def row(self, run: int) -> Any:
        return self.db.execute("select * from yamlsched.job_runs where id = %s", [run]).fetchone()

    def until_status(self, run: int, status: str) -> Any:
        """Wait until the run has this status, and return its row."""
        until(lambda: self.row(run).status == status, f"run {run} is {status}")
        return self.row(run)

    def failures(self, run: int) -> list[Any]:
        return self.db.execute(
            "select f.*, o.output, o.omitted_bytes from yamlsched.job_failures f "
            "left join yamlsched.attempt_outputs o "
            "on (o.run_id, o.attempt, o.worker) = (f.run_id, f.attempt, f.worker) "
            "where f.run_id = %s order by f.attempt",
            [run],
        ).fetchall()

    def outputs(self, run: int) -> list[Any]:
        """Return what is kept of the output of the attempts of ``run``."""
        return self.db.execute(
            "select * from yamlsched.attempt_outputs where run_id = %s order by ended_at", [run]
        ).fetchall()

    def calls(self, what: str, run: int | None = None) -> int:
        """Return how many calls of handlers have ``started`` or ``completed``, of one run or of all."""
        path = self.folder / "calls"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return sum(1 for kind, number, *_ in lines if kind == what and run in (None, int(number)))

    def until_started(self, run: int, times: int = 1) -> None:
        until(lambda: self.calls("started", run) >= times, f"run {run} has started {times} times")

    def touch(self, name: str) -> None:
        """Create a file that a handler waits for."""
        (self.folder / name).touch()

    def summary(self, run: int) -> tuple[str, int, int, int, int]:
        """Return a run's status, attempts, handler calls started and completed, and recorded failures."""
        row = self.row(run)
        return (
            row.status,
            row.attempts,
            self.calls("started", run),
            self.calls("completed", run),
            len(self.failures(run)),
        )

    def statuses(self) -> dict[str, int]:
        rows = self.db.execute(
            "select status, count(*) as runs from yamlsched.job_runs group by 1"
        ).fetchall()
        return {row.status: row.runs for row in rows}

    def close(self) -> None:
        self.db.close()


@contextmanager
def a_project(folder: Path, dsn: str) -> Iterator[Project]:
    """Yield a project; its processes are killed afterwards."""
    project = Project(ForkServer.of_all(), folder, dsn)
    try:
        yield project
    finally:
        project.fork_server.kill(project.pids)
        project.close()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
