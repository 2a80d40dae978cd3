"""A Dask cluster on loopback: scheduler, nannies and workers, each a process of its own that a test can kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from support.project import TESTS, Project, until

START_TIMEOUT_SECONDS = 300.0  # a worker with a nanny starts Python twice, and imports Dask


class Cluster:
    """The processes of a cluster whose workers reach the database of ``project`` and can import its handlers.

    Dask's settings are its defaults, except that the dashboard is left out, and what ``settings`` sets: environment
    variables. ``protocol`` is that of its addresses.
    """

    def __init__(
        self, project: Project, protocol: str = "tcp", settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = project.folder / "dask"
        self.folder.mkdir()
        self._environment = {
            **os.environ,
            "YAMLSCHED_DSN": project.dsn,
            "PYTHONPATH": str(TESTS),
            "TEST_FOLDER": str(project.folder),
            **(settings or {}),
        }
        self._project_folder, self._protocol = project.folder, protocol
        self._processes: list[subprocess.Popen[bytes]] = []
        self._with_nanny: list[subprocess.Popen[bytes]] = []
        self.scheduler, self.address = self.start_scheduler()

    def start_scheduler(self, port: int = 0, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start a scheduler; return its process and its address."""
        file = self.folder / f"scheduler-{len(self._processes)}.json"
        words = (
            "--protocol",
            self._protocol,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-dashboard",
        )
        words += ("--scheduler-file", str(file))
        # without our DSN and code: a scheduler needs neither
        environment = {
            name: value for name, value in self._environment.items() if name != "PYTHONPATH"
        }
        process = self._start("scheduler", *words, *options, environment=environment)
        until(file.exists, "the scheduler has started", START_TIMEOUT_SECONDS)
        return process, str(json.loads(until(file.read_text))["address"])

    def restart_scheduler(self) -> None:
        """Start another scheduler at the same address."""
        self.scheduler, _ = self.start_scheduler(int(self.address.rpartition(":")[2]))

    def tasks(self) -> str:
        """Return the keys of all tasks that the scheduler knows."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return " ".join(
                client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
            )

    def start_worker(
        self, *options: str, has_nanny: bool = False, python_path: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker with four threads, and return its process: that of the nanny, if it has one.

        ``python_path`` comes before the tests in its PYTHONPATH.
        """
        environment = (
            {**self._environment, "PYTHONPATH": f"{python_path}:{TESTS}"} if python_path else None
        )
        threads = () if "--nthreads" in options else ("--nthreads", "4")
        words = ("--local-directory", str(self.folder), "--no-dashboard", *threads, *options)
        words += () if has_nanny else ("--no-nanny",)
        process = self._start("worker", self.address, *words, environment=environment)
        log = self.folder / f"log-{len(self._processes)}"
        until(
            lambda: "Registered to" in log.read_text(),
            "the worker has registered",
            START_TIMEOUT_SECONDS,
        )
        return process

    def keep_workers(self, count: int) -> None:
        """Start workers with nannies until ``count`` are alive: those that were killed are not, nor the scheduler's."""
        alive = [process for process in self._with_nanny if process.poll() is None]
        while len(alive) < count:
            alive.append(self.start_worker(has_nanny=True))
        self._with_nanny = alive

    def _start(
        self, kind: str, *words: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{len(self._processes) + 1}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", kind, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._project_folder,
                env=environment or self._environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one process, and nothing that it has started."""
        process.kill()
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self) -> str:
        """Return what all its processes have printed."""
        return "".join(
            path.read_text("utf-8", "replace") for path in sorted(self.folder.glob("log-*"))
        )


@contextmanager
def a_cluster(
    project: Project, protocol: str = "tcp", settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Yield a cluster without workers, and make it the executor ``cluster`` of the project."""
    cluster = Cluster(project, protocol, settings)
    project.executors = {"cluster": {"type": "dask", "address": cluster.address}}
    try:
        yield cluster
    finally:
        cluster.close()
