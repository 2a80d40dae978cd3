"""A Dask scheduler and Dask workers on hosts of their own, and partitions between each two of all that take part.

The worker of yamlsched and its gateway are on host a. Dask workers, and so the agents, are on hosts b and c.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.project import TESTS, Process, until

from .conftest import HostsProject
from .handlers import beats_of

pytestmark = pytest.mark.hosts

ONCE = ("succeeded", 1, 1, 1, 0)
SECOND_ATTEMPT = ("succeeded", 2, 2, 1, 1)
PORT = 8786


class DaskHosts:
    """The processes of a cluster; ``start_worker`` adds one with a single thread."""

    def __init__(self, project: HostsProject) -> None:
        self.project = project
        self.processes: list[subprocess.Popen[bytes]] = []
        address = project.network.hosts["scheduler"].address
        self.address = f"tcp://{address}:{PORT}"
        log = self._start("scheduler", "scheduler", "--host", address, "--port", str(PORT))
        until(lambda: "Scheduler at" in log.read_text(), "the scheduler has started")

    def start_worker(self, host: str) -> None:
        words = (
            "--host",
            self.project.network.hosts[host].address,
            "--nthreads",
            "1",
            "--no-nanny",
        )
        log = self._start(
            host, "worker", self.address, *words, "--local-directory", str(self.project.folder)
        )
        until(lambda: "Registered to" in log.read_text(), "the Dask worker has registered")

    def _start(self, host: str, *words: str) -> Any:
        environment = {
            **os.environ,
            "YAMLSCHED_DSN": self.project.remote_dsn,
            "PYTHONPATH": str(TESTS),
            "TEST_FOLDER": str(self.project.folder),
            "OMP_NUM_THREADS": "1",
        }
        path = self.project.folder / f"dask-{host}"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *self.project.network.hosts[host].enter(),
                    sys.executable,
                    "-m",
                    "dask",
                    *words,
                    "--no-dashboard",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.project.folder,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)
        return path

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(project: HostsProject) -> Iterator[DaskHosts]:
    """A cluster with a Dask worker on host b."""
    cluster = DaskHosts(project)
    project.executors = {"cluster": {"type": "dask", "address": cluster.address}}
    try:
        cluster.start_worker("b")
        yield cluster
    finally:
        cluster.close()


def on_cluster(**job: Any) -> dict[str, Any]:
    return {"executor": "cluster", **job}


def started_on_b(project: HostsProject, job: str) -> tuple[Process, int]:
    """Start a worker on host a whose run is executed on host b."""
    [run] = project.enqueue(job)
    worker = project.start("work", "--loop", host="a")
    until(lambda: beats_of(project.folder, run, 1), "the handler is alive")
    return worker, run


def stop(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


def test_an_agent_that_is_cut_off_from_the_database_stops_its_handler_before_the_next_attempt(
    project: HostsProject, cluster: DaskHosts
) -> None:
    project.sync(beats=on_cluster())
    worker, run = started_on_b(project, "beats")
    cluster.start_worker("c")  # which is idle: Dask prefers it

    project.network.separate(["b"], ["db"])

    until(lambda: project.row(run).finished_at, "the run has ended", seconds=120)
    assert project.summary(run) == SECOND_ATTEMPT
    assert "lost its worker" in project.failures(run)[0].error
    assert beats_of(project.folder, run, 1)[-1] < beats_of(project.folder, run, 2)[0]
    project.network.heal()
    stop(worker)


def test_an_agent_that_is_cut_off_from_the_scheduler_goes_on_and_its_run_is_executed_once(
    project: HostsProject, cluster: DaskHosts
) -> None:
    project.sync(beats_until_go=on_cluster())
    worker, run = started_on_b(project, "beats_until_go")
    cluster.start_worker("c")

    # when the scheduler does not know what becomes of the task, for longer than a lease
    project.network.separate(["b"], ["scheduler"])
    alive_since = beats_of(project.folder, run, 1)[-1]
    until(
        lambda: beats_of(project.folder, run, 1)[-1] > alive_since + 7, "it has outlived its lease"
    )
    project.touch("go")

    # then the outcome is read from the ticket, and other runs go to the other Dask worker
    project.until_status(run, "succeeded")
    [other] = project.enqueue("beats_until_go")
    project.until_status(other, "succeeded")
    project.network.heal()
    stop(worker)
    assert [project.summary(one) for one in (run, other)] == [ONCE, ONCE]


def test_a_gateway_that_is_cut_off_from_the_scheduler_submits_again_when_it_is_back(
    project: HostsProject, cluster: DaskHosts
) -> None:
    project.sync(beats_until_go=on_cluster())
    worker, run = started_on_b(project, "beats_until_go")

    # when the gateway loses the scheduler while one attempt is executed and another one is to be submitted
    project.network.separate(["a"], ["scheduler"])
    [other] = project.enqueue("beats_until_go")
    until(lambda: "executor.unreachable" in worker.text, "the gateway notices", seconds=150)
    assert project.row(other).attempts == 1
    project.touch("go")
    project.until_status(run, "succeeded")
    project.network.heal()

    # then both are executed once
    until(lambda: project.row(other).finished_at, "the other run has ended", seconds=150)
    stop(worker)
    assert [project.summary(one) for one in (run, other)] == [ONCE, ONCE]
