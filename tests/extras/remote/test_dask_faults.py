"""Faults of a Dask cluster: what is killed, and what that costs. The rows are those of docs/executors.md.

Each summary is the status of the run, its attempts, the handler calls started and completed, and the failures recorded.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.dask_cluster import Cluster, a_cluster
from support.database import temporary_database
from support.project import Process, Project, a_project, is_alive, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Project, Cluster]]:
    folder = tmp_path_factory.mktemp("project")
    with (
        temporary_database(server, template) as dsn,
        a_project(folder, dsn) as project,
        a_cluster(project) as cluster,
    ):
        yield project, cluster


@pytest.fixture
def cluster(shared: tuple[Project, Cluster]) -> Cluster:
    """Return the cluster, with two workers that can take any attempt."""
    cluster = shared[1]
    cluster.keep_workers(2)
    return cluster


@pytest.fixture
def project(shared: tuple[Project, Cluster]) -> Project:
    return shared[0]


def on_cluster(**job: Any) -> dict[str, Any]:
    return {"executor": "cluster", "max_attempts": 2, "lease": "20s", **job}


def tickets(project: Project, run: int) -> list[Any]:
    return project.db.execute(
        "select * from yamlsched.attempt_begins where run_id = %s", [run]
    ).fetchall()


class Executing:
    """A run whose handler is executing: the processes from the handler up."""

    def __init__(self, project: Project, job: str, payload: dict[str, Any] | None = None) -> None:
        [self.run] = project.enqueue(job, payload)
        self.worker: Process = project.start("work")
        project.until_started(self.run)
        lines = [line.split() for line in (project.folder / "calls").read_text().splitlines()]
        self.handler = next(int(pid) for _, run, _, pid in lines if int(run) == self.run)
        self.agent = int(tickets(project, self.run)[0].agent.split(":")[-2])
        self.dask_worker = parent(self.agent)
        self.nanny = parent(self.dask_worker)
        self.worker.wait()  # it has begun


def finish(project: Project, run: int) -> None:
    """Have a worker execute what is there until the run has succeeded."""
    worker = project.start("work", "--loop")
    project.until_status(run, "succeeded")
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (0, -signal.SIGTERM), worker.text


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


ORPHANED = "its agent was stopped: the process that had started it is gone"
KILLS = [
    ("handler", "killed by signal 9 (SIGKILL)"),
    ("agent", "lost its worker"),
    ("dask_worker", ORPHANED),
    ("nanny", ORPHANED),
]


@pytest.mark.parametrize("what, error", KILLS, ids=[what for what, _ in KILLS])
def test_what_is_killed_on_the_cluster_costs_one_attempt_and_leaves_no_handler(
    project: Project, cluster: Cluster, what: str, error: str
) -> None:
    project.sync(first_attempt_waits=on_cluster())
    executing = Executing(project, "first_attempt_waits")

    os.kill(getattr(executing, what), signal.SIGKILL)

    finish(project, executing.run)
    assert project.summary(executing.run) == ("succeeded", 2, 2, 1, 1)
    assert error in project.failures(executing.run)[0].error
    assert not is_alive(executing.handler)
    assert len(tickets(project, executing.run)) == 2


def test_an_attempt_that_waits_for_the_cluster_when_the_gateway_dies_is_submitted_by_the_next_one(
    project: Project, cluster: Cluster
) -> None:
    project.sync(nothing=on_cluster(resources={"LATER": 1}))
    [run] = project.enqueue("nothing")
    worker = project.start("work")
    until(lambda: f"yamlsched-{run}-" in cluster.tasks())
    [gateway] = worker.children()

    os.kill(gateway, signal.SIGKILL)
    until(lambda: worker.children() not in ([], [gateway]), "another gateway")
    cluster.start_worker("--resources", "LATER=1")

    assert worker.wait() == 0
    finish(project, run)
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_an_attempt_goes_on_when_its_worker_has_gone_and_another_one_applies_the_outcome(
    project: Project, cluster: Cluster
) -> None:
    project.sync(waits_for_file=on_cluster(lease="8s"))  # long enough for an agent on a busy host
    executing = Executing(project, "waits_for_file", {"name": "gone"})

    first_end = project.row(executing.run).locked_until
    until(lambda: tickets(project, executing.run)[0].seen_at > first_end, "the agent goes on")
    project.touch("gone")
    finish(project, executing.run)

    assert project.summary(executing.run) == ("succeeded", 1, 1, 1, 0)


def test_a_result_that_is_lost_with_its_dask_worker_is_not_computed_again(
    project: Project, cluster: Cluster
) -> None:
    project.sync(waits_for_file=on_cluster(lease="1m"))
    executing = Executing(project, "waits_for_file", {"name": "lost"})

    # given an agent that has written its outcome, and hangs, so that its task has not ended
    os.kill(executing.agent, signal.SIGSTOP)
    project.touch("lost")
    until(lambda: project.calls("completed", executing.run))
    os.kill(executing.agent, signal.SIGCONT)
    until(lambda: tickets(project, executing.run)[0].ended_at)

    # when the Dask worker dies, so that Dask may execute the task again
    os.kill(executing.dask_worker, signal.SIGKILL)

    finish(project, executing.run)
    assert project.summary(executing.run) == ("succeeded", 1, 1, 1, 0)
    assert len(tickets(project, executing.run)) == 1


OLD = "import yamlsched.extras.remote.spec as spec; spec.FORMAT = 0"
WITHOUT = "import sys; sys.modules['yamlsched'] = None"
VERSIONS = [
    (
        "another yamlsched",
        OLD,
        "waits_for_file",
        0,
        "here reads 0: install the same version on both",
    ),
    ("no yamlsched", WITHOUT, "waits_for_file", 0, "ModuleNotFoundError"),
    ("another handler", "", "missing", 1, "has no attribute 'missing'"),
]


@pytest.mark.parametrize(
    "site, handler, begun, error", [row[1:] for row in VERSIONS], ids=[row[0] for row in VERSIONS]
)
def test_the_wrong_code_on_the_cluster_is_reported_with_what_to_do_and_fails_only_what_begins(
    project: Project, cluster: Cluster, site: str, handler: str, begun: int, error: str
) -> None:
    job = on_cluster(
        handler=f"support.handlers.{handler}",
        resources={"WRONG": 1} if site else {},
        max_attempts=1,
    )
    project.sync(wrong=job)
    if site:
        folder = cluster.folder / f"site-{len(list(cluster.folder.iterdir()))}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(site)
        dask_worker = cluster.start_worker("--resources", "WRONG=1", python_path=folder)
    [run] = project.enqueue("wrong")

    worker = project.start("work", "--loop")
    until(
        lambda: error in ((project.row(run).last_error or "") if begun else worker.text),
        "the report",
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    assert project.summary(run) == (("dead", 1, 0, 0, 1) if begun else ("queued", 0, 0, 0, 0))
    assert len([ticket for ticket in tickets(project, run) if ticket.agent]) == begun
    if site:
        cluster.kill(dask_worker)
        project.start("cancel", str(run)).wait()


def test_a_scheduler_that_is_away_costs_nothing_and_is_logged(project: Project) -> None:
    address = project.executors["cluster"]["address"]
    project.executors["cluster"] = {"type": "dask", "address": "tcp://127.0.0.1:1"}
    project.sync(nothing=on_cluster())
    project.executors["cluster"] = {"type": "dask", "address": address}
    [run] = project.enqueue("nothing")
    worker = project.start("work")

    until(lambda: "executor.unreachable executor=cluster address=tcp://127.0.0.1:1" in worker.text)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    project.start("cancel", str(run)).wait()


def test_a_restart_of_the_scheduler_costs_at_most_the_attempts_that_execute(
    project: Project, cluster: Cluster
) -> None:
    project.sync(first_attempt_waits=on_cluster(), nothing=on_cluster(resources={"LATER": 1}))
    executing = Executing(project, "first_attempt_waits")
    [waiting] = project.enqueue("nothing")
    worker = project.start("work")
    until(lambda: f"yamlsched-{waiting}-" in cluster.tasks())

    cluster.kill(cluster.scheduler)
    until(
        lambda: not is_alive(executing.handler), "the Dask worker has exited, and its agent stopped"
    )
    cluster.restart_scheduler()
    cluster.start_worker("--resources", "LATER=1")
    assert worker.wait() == 0, worker.text

    finish(project, executing.run)
    finish(project, waiting)
    assert project.summary(executing.run) == ("succeeded", 2, 2, 1, 1)
    assert project.summary(waiting) == ("succeeded", 1, 1, 1, 0)
