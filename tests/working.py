"""A project with a schedule and a database, real processes of yamlsched, and what became of runs and handlers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
from forker import IMMEDIATE
from psycopg.conninfo import make_conninfo

from yamlsched import store
from yamlsched.definitions import build
from yamlsched.store.connection import connect_for_handler
from yamlsched.sync import ScheduleFile, sync

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0  # seconds after which a condition that is awaited counts as never


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for ``condition`` and return what it says."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what or condition}"
        time.sleep(0.01)
    return answer


class Forker:
    """See forker.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, pid, *status = line.split()
            with self._news:
                if what == "started":
                    self._started.append(int(pid))
                else:
                    self._ended[int(pid)] = int(status[0])
                self._news.notify_all()

    def start(self, **order: Any) -> int:
        """Start a process and return its id."""
        assert self._process.stdin is not None
        with self._news:
            count = len(self._started)
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            assert self._news.wait_for(lambda: len(self._started) > count, PATIENCE)
            return self._started[count]

    def code(self, pid: int, timeout: float | None) -> int | None:
        """Return the exit code of a process, None while it is alive; negative: the signal that killed it."""
        with self._news:
            self._news.wait_for(lambda: pid in self._ended, timeout)
            return self._ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@dataclass
class Process:
    """A process of yamlsched."""

    forker: Forker
    pid: int
    log: Path

    def wait(self) -> int:
        code = self.forker.code(self.pid, PATIENCE)
        assert code is not None, f"still running: {self.text[-2000:]}"
        return code

    @property
    def is_alive(self) -> bool:
        return self.forker.code(self.pid, 0) is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def children(self) -> list[int]:
        """Return its living child processes."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    @property
    def text(self) -> str:
        """What it wrote to stderr so far."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


@dataclass
class Project:
    """A folder with schedules.yaml, of which ``jobs`` are the jobs (handlers in acts.py), on a database."""

    forker: Forker
    folder: Path
    dsn: str
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        self.db = connect_for_handler(self.dsn)

    @property
    def file(self) -> Path:
        return self.folder / "schedules.yaml"

    def write(self, **jobs: dict[str, Any]) -> None:
        """Write the schedule: jobs get short leases, and retries without a delay, where they do not say otherwise."""
        usual = {"lease": "2s", "backoff": {"policy": "fixed", "delay": "0s", "max_delay": "1s"}}
        self.jobs = jobs
        entries = {name: {"handler": f"acts.{name}", **usual, **job} for name, job in jobs.items()}
        self.file.write_text(json.dumps({"version": 1, "jobs": entries}))

    def sync(self, **jobs: dict[str, Any]) -> None:
        """Write the schedule and apply it, whatever its handlers are."""
        self.write(**jobs)
        with store.connect(self.dsn) as connection, patch.dict(build.LIMITS, IMMEDIATE):
            synced = sync(connection, ScheduleFile.read(self.file, None, None), at_once=True)
        assert not synced.messages, synced.messages

    def enqueue(self, job: str, payload: dict[str, Any] | None = None, count: int = 1) -> list[int]:
        """Enqueue runs and return their ids."""
        rows = self.db.execute(
            "select run_id from yamlsched.enqueue_many(%s, array(select %s::jsonb from generate_series(1, %s)))",
            [job, json.dumps(payload or {}), count],
        )
        return [row.run_id for row in rows]

    def start(self, *words: str, dsn: str | None = None, before: str = "", host: str = "a", **env: str) -> Process:
        """Start ``yamlsched *words`` on this project, as if on a host of that name.

        ``before`` is a statement that is carried out in it first.
        """
        self.number += 1
        log = self.folder / f"log-{self.number}"
        verb, *rest = words
        argv = [verb, "--file", str(self.file), "--dsn", dsn or self.dsn, *rest]
        if verb in ("work", "tick"):
            argv += ["--path", str(HERE)]
        (slots := self.folder / f"host-{host}").mkdir(exist_ok=True)
        settings = {"ACTS": str(self.folder), "TMPDIR": str(slots), **env}
        pid = self.forker.start(
            argv=argv, env=settings, stdout=str(self.folder / f"out-{self.number}"), stderr=str(log), before=before
        )
        return Process(self.forker, pid, log)

    def work(self, *words: str, code: int = 0, **more: Any) -> Process:
        """Let a worker drain the queue, and check how it ended."""
        process = self.start("work", *words, **more)
        assert process.wait() == code, process.text[-3000:]
        return process

    def end_leases(self) -> None:
        """Let leases be over, as they are in time, of workers that have died."""
        self.db.execute("update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'")

    def row(self, run: int) -> Any:
        return self.db.execute("select * from yamlsched.job_runs where id = %s", [run]).fetchone()

    def until_status(self, run: int, status: str) -> Any:
        """Wait until the run has that status, and return it."""
        until(lambda: self.row(run).status == status, f"run {run} is {status}")
        return self.row(run)

    def failures(self, run: int) -> list[Any]:
        return self.db.execute(
            "select * from yamlsched.job_failures where run_id = %s order by attempt", [run]
        ).fetchall()

    def calls(self, what: str, run: int | None = None) -> int:
        """Return how many calls of handlers have ``begun`` or ``completed``, of one run or of all."""
        path = self.folder / "calls"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return sum(1 for kind, number, *_ in lines if kind == what and run in (None, int(number)))

    def until_begun(self, run: int, times: int = 1) -> None:
        until(lambda: self.calls("begun", run) >= times, f"run {run} has begun {times} times")

    def say(self, name: str) -> None:
        """Make the file that a handler waits for."""
        (self.folder / name).touch()

    def became(self, run: int) -> tuple[str, int, int, int, int]:
        """Return what became of a run: status, attempts, handlers begun and completed, failures recorded."""
        row = self.row(run)
        return row.status, row.attempts, self.calls("begun", run), self.calls("completed", run), len(self.failures(run))

    def statuses(self) -> dict[str, int]:
        rows = self.db.execute("select status, count(*) as runs from yamlsched.job_runs group by 1").fetchall()
        return {row.status: row.runs for row in rows}

    def close(self) -> None:
        self.db.close()


@contextmanager
def a_project(folder: Path, dsn: str) -> Iterator[Project]:
    """Make a project; its processes end with it."""
    forker = Forker()
    project = Project(forker, folder, dsn)
    try:
        yield project
    finally:
        forker.close()
        project.close()


class Proxy:
    """Stands between a worker and its server, and can fall silent without closing anything."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            self._host, self._port = connection.info.host, connection.info.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable")
        self.is_silent = False
        self._sockets = [self._listener]
        self._clients: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _to_server(self, client: socket.socket, piece: bytes) -> bytes:
        return piece

    def _to_client(self, piece: bytes) -> bytes:
        return piece

    def _server(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return server
        return socket.create_connection((self._host, self._port))

    def _pass_on(self) -> None:
        other: dict[socket.socket, socket.socket] = {}
        while self._listener.fileno() >= 0:
            ready, _, _ = select.select([] if self.is_silent else self._sockets, [], [], 0.02)
            for source in ready:
                if source is self._listener:
                    try:
                        client, _ = self._listener.accept()
                    except OSError:
                        return  # closed meanwhile
                    server = self._server()
                    other |= {client: server, server: client}
                    self._clients.add(client)
                    self._sockets += [client, server]
                    continue
                if source.fileno() < 0:
                    continue
                try:
                    piece = source.recv(1 << 16)
                    piece = self._to_server(source, piece) if source in self._clients else self._to_client(piece)
                    other[source].sendall(piece)
                except OSError:
                    piece = b""
                if not piece:
                    for end in (source, other[source]):
                        self._sockets.remove(end)
                        end.close()

    def close(self) -> None:
        self.is_silent = True
        sockets, self._sockets = self._sockets, []
        for end in sockets:
            end.close()
        self._thread.join()


class Pooler(Proxy):
    """A proxy that behaves as PgBouncer does: it refuses options, and tells clients a process id of its own."""

    refuses_options = True

    def _to_server(self, client: socket.socket, piece: bytes) -> bytes:
        if self.refuses_options and b"\0options\0" in piece:
            fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
            return b""
        return piece

    def _to_client(self, piece: bytes) -> bytes:
        start, key, rest = piece.partition(b"K" + (12).to_bytes(4, "big"))
        return start + key + (4711).to_bytes(4, "big") + rest[4:] if key else piece


@contextmanager
def a_proxy(dsn: str, kind: type[Proxy] = Proxy) -> Iterator[Proxy]:
    proxy = kind(dsn)
    try:
        yield proxy
    finally:
        proxy.close()


def is_alive(pid: int) -> bool:
    """Say whether a process runs: a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
