"""What the parts share: a server, a new database for each measurement, processes and their cost, rows of results."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from benchmarks.contenders import Contender

# a contender that hangs ends the run
TIMEOUT_SECONDS = float(os.environ.get("BENCH_TIMEOUT", "300"))
ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
# The embedded server has small settings, for laptops. These are typical settings of a team's server.
SERVER = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "min_wal_size": "1GB",
    "max_connections": 200,
    "shared_preload_libraries": os.environ.get("BENCH_PRELOAD", ""),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured. ``quick`` only checks that everything works."""

    drain: tuple[int, ...] = (20_000, 100_000)
    finished: int = 1_000_000
    history: int = 10_000_000
    backlog: int = 100_000
    concurrency: tuple[int, ...] = (1, 8, 32)
    busy_seconds: float = 6.0
    bulk: int = 10_000
    singles: int = 300
    latencies: int = 200
    definitions: tuple[int, int] = (10, 100_000)
    jobs: int = 10_000
    busy_jobs: int = 500
    spike: int = 10_000
    large_spike: int = 100_000
    spike_workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    failures: int = 20_000
    held_runs: int = 300_000
    held_jobs: int = 40_000
    held_seconds: float = 60.0  # a whole minute, so that each one has the sync of a minute once
    ticks: int = 10
    starts: int = 5
    long: tuple[int, ...] = (2, 4, 8)
    limited: int = 2_000
    limited_slots: int = 2_000
    io: int = 10_000
    at_once: tuple[int, ...] = (200, 1_000)
    in_flight: int = 1_000
    tasks: int = 20
    soak_minutes: float = 60
    fan_outs: tuple[int, ...] = (100_000, 1_000_000)

    @classmethod
    def quick(cls) -> Sizes:
        return cls(
            drain=(200,), finished=2_000, history=5_000, backlog=200, concurrency=(2,), busy_seconds=0.2, bulk=200,
            singles=10, latencies=5, definitions=(10, 100), jobs=100, busy_jobs=20, spike=100, large_spike=200, ticks=1,
            io=20, at_once=(5,), in_flight=10, tasks=3, soak_minutes=0.05, spike_workers=(1, 2), failures=50,
            held_runs=500, held_jobs=50, held_seconds=0.5, fan_outs=(2_000,), starts=1,
            long=(2,), limited=200, limited_slots=20,
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the results: a contender in a case. ``values`` are the repetitions; None: not measured."""

    part: str
    case: str
    contender: str
    unit: str
    values: tuple[float, ...] | None
    note: str = ""
    more_is_better: bool = True

    @property
    def median(self) -> float | None:
        return None if not self.values else statistics.median(self.values)


@dataclass
class Bench:
    """One run: a server (``dsn``), the number of repetitions, the contenders, and the results so far."""

    dsn: str
    repeat: int
    sizes: Sizes
    contenders: list[Contender]
    folder: Path
    results: Path | None = None
    rows: list[Row] = field(default_factory=list)
    server: dict[str, str] = field(default_factory=dict)
    _collected: dict[tuple[str, str, str, str], tuple[list[float], str, bool]] = field(
        default_factory=dict
    )

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, dsn: str | None, repeat: int, sizes: Sizes, contenders: list[Contender]
    ) -> Iterator[Bench]:
        """Start a server in a temporary folder, unless ``dsn`` names one."""
        # as an installer does: where Python writes no bytecode, each start would compile the whole package again
        compileall.compile_dir(ROOT / "yamlsched", quiet=1)
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="yamlsched-bench-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            if dsn is None:
                from yamlsched.extras import embedded
                from yamlsched.extras.embedded import server

                server.SETTINGS.update(SERVER)
                file = folder / "schedules.yaml"
                stack.callback(embedded.discard, file)
                dsn = stack.enter_context(embedded.running(file, by_name=True))
            bench = cls(dsn, repeat, sizes, contenders, folder)
            bench._read_server_settings()
            yield bench

    def _read_server_settings(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            for name in (
                "server_version",
                "fsync",
                "synchronous_commit",
                "shared_buffers",
                "max_wal_size",
            ):
                self.server[name] = connection.execute(
                    "select current_setting(%s)", (name,)
                ).fetchone()[0]
        if (self.server["fsync"], self.server["synchronous_commit"]) != ("on", "on"):
            raise SystemExit(
                "commits on this server are not durable: turn on fsync and synchronous_commit"
            )

    # -- results ---------------------------------------------------------------------------------------------------

    def add(
        self,
        part: str,
        case: str,
        contender: str,
        unit: str,
        value: float,
        note: str = "",
        more_is_better: bool = True,
    ) -> None:
        """Add the ``value`` of one repetition to its row; the first one creates the row."""
        key = (part, case, contender, unit)
        values, note, more_is_better = self._collected.setdefault(key, ([], note, more_is_better))
        values.append(value)
        row = Row(part, case, contender, unit, tuple(values), note, more_is_better)
        for index, old in enumerate(self.rows):
            if (old.part, old.case, old.contender, old.unit) == key:
                self.rows[index] = row
                return
        self.rows.append(row)

    def not_measured(
        self, part: str, reason: str, case: str = "", contender: str = "yamlsched"
    ) -> None:
        row = Row(part, case, contender, "", None, f"not measured: {reason}")
        if row not in self.rows:
            self.rows.append(row)

    # -- databases -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """Yield the DSN of a new database, dropped afterwards, so that no measurement affects the next."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            source = template or "template0"
            admin.execute(f'create database "{name}" template "{source}"'.encode())
        try:
            yield make_conninfo(self.dsn, dbname=name)
        finally:
            with psycopg.connect(self.dsn, autocommit=True) as admin:
                admin.execute(f'drop database "{name}" with (force)'.encode())

    def vacuum(self, dsn: str) -> None:
        """Vacuum and checkpoint now, so that the server does not do it during the measurement."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("vacuum (analyze)")
            connection.execute("checkpoint")


def url(dsn: str) -> str:
    """Return ``dsn`` as a URL, the only form that all peers' drivers accept, sockets included."""
    from urllib.parse import quote, urlencode

    parts = conninfo_to_dict(dsn)
    user, password = quote(str(parts.get("user", ""))), parts.get("password")
    login = f"{user}:{quote(str(password))}" if password else user
    query = urlencode({name: str(parts[name]) for name in ("host", "port") if name in parts})
    return f"postgresql://{login}@/{quote(str(parts['dbname']))}?{query}"


# -- processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The cost of a process from its start to its exit. ``memory`` is the largest resident set, in MiB."""

    seconds: float
    memory: float
    status: int


def measure_command(
    command: Sequence[str | Path], accept: Sequence[int] = (0,), **options: Any
) -> Cost:
    """Run ``command`` and return its cost. The memory is that of its largest process.

    Raise RuntimeError if it exits with another status than ``accept``: a failing command is fast, and its time would
    look like a good result.
    """
    with tempfile.NamedTemporaryFile("r") as file:
        output = run(
            [
                PYTHON,
                "-I",
                "-S",
                str(Path(__file__).parent / "measure_process.py"),
                file.name,
                *command,
            ],
            **options,
        )
        result = Cost(**json.load(file))
    if result.status not in accept:
        raise RuntimeError(f"{command} exited with {result.status}: {output[-2000:]}")
    return result


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Run ``command`` and return its output. Raise RuntimeError with its messages if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, **options
    )
    if done.returncode:
        raise RuntimeError(
            f"{command} exited with {done.returncode}: {done.stderr[-3000:]}{done.stdout[-1000:]}"
        )
    return done.stdout


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for ``processes`` and return their output."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{process.args} exited with {process.returncode}: {errors[-3000:]}")
    return [output for output, _ in outputs]


def server_cpu_seconds(dsn: str) -> float:
    """Return the CPU time of the server on this machine : of all its processes, also those that have ended."""
    with psycopg.connect(dsn) as connection:
        postmaster = int(_stat(connection.info.backend_pid)[1])
    return _cpu_seconds(postmaster) + sum(map(_cpu_seconds, _children(postmaster)))


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants so far; 0 for one that has ended."""
    try:
        return _cpu_seconds(pid) + sum(map(process_cpu_seconds, _children(pid)))
    except OSError:
        return 0.0


def session_cpu_seconds(dsn: str) -> float:
    """Return the CPU time of the server's processes for the other sessions of a database so far."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchall()
    return sum(_cpu_seconds(pid) for (pid,) in found)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children that have ended; 0 if it has ended itself."""
    try:
        return sum(map(int, _stat(pid)[11:15])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alternate(times: int, *measures: Callable[[], None]) -> None:
    """Call ``measures`` in turn, ``times`` times, so that other load on the machine affects all of them."""
    for _ in range(times):
        for measure in measures:
            measure()
