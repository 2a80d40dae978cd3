"""Containers: a worker and agents as PID 1, equal host names and process ids, and an agent that is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.database import temporary_database
from support.project import TESTS, Project, a_project, agent_exports, is_alive, until

pytestmark = pytest.mark.hosts

IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child"]
PLAIN = {
    "lease": "20s",
    "backoff": {"policy": "fixed", "delay": "1s"},
}  # valid outside of the tests' own processes
NAMED = "import socket, sys; socket.sethostname('app'); from yamlsched.cli import main; main()"


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


@pytest.fixture
def containers(project: Project) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for container in started:
        container.kill()
        container.wait()


def start(project: Project, containers: list[subprocess.Popen[bytes]], number: int) -> None:
    """Start a worker that is PID 1 of a host named app."""
    words = [
        "work",
        "--loop",
        "--file",
        str(project.file),
        "--dsn",
        project.dsn,
        "--path",
        str(TESTS),
    ]
    folder = project.folder / f"container-{number}"
    folder.mkdir()
    environment = {**os.environ, "TEST_FOLDER": str(project.folder), "TMPDIR": str(folder)}
    with (folder / "log").open("wb") as log:
        containers.append(
            subprocess.Popen(
                [*IN_A_CONTAINER, sys.executable, "-c", NAMED, *words],
                stdout=log,
                stderr=log,
                env=environment,
            )
        )


def descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []
    return [each for child in children for each in (child, *descendants(child))]


def zombies(pid: int) -> list[int]:
    return [
        each for each in descendants(pid) if Path(f"/proc/{each}").exists() and not is_alive(each)
    ]


def in_a_container(project: Project) -> None:
    """Give the project an executor whose agents are PID 1 of hosts named app."""
    script = f'{" ".join(IN_A_CONTAINER)} sh -c \'hostname app; exec "$@"\' sh "$@"\n'
    (project.folder / "run").write_text(agent_exports(project.folder, project.dsn) + script)
    project.executors = {
        "engine": {"type": "command", "command": ["/bin/sh", "run"], "concurrency": 30}
    }


def test_workers_and_agents_with_equal_host_names_and_process_ids_execute_each_run_once(
    project: Project, containers: list[subprocess.Popen[bytes]]
) -> None:
    in_a_container(project)
    project.sync(nap=PLAIN, nothing={**PLAIN, "executor": "engine"})
    runs = project.enqueue("nap", {"seconds": 0.2}, count=20) + project.enqueue("nothing", count=10)

    for number in range(2):
        start(project, containers, number)
    for run in runs:
        project.until_status(run, "succeeded")

    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    rows = project.db.execute("select locked_by from yamlsched.job_runs").fetchall()
    assert {row.locked_by.rpartition(":")[0] for row in rows} == {"app:1"}
    agents = project.db.execute("select agent from yamlsched.attempt_begins").fetchall()
    assert {row.agent.rpartition(":")[0] for row in agents} == {"app:1"}
    assert len({row.agent for row in agents}) == 10


def test_a_worker_that_is_pid_1_reaps_what_commands_leave_behind(
    project: Project, containers: list[subprocess.Popen[bytes]]
) -> None:
    leaves = [
        "/bin/sh",
        "-c",
        "setsid sh -c 'touch left-$$; while ! [ -e go ]; do sleep 0.05; done' > /dev/null 2>&1 &",
    ]
    project.sync(leaves={**PLAIN, "command": leaves})
    runs = project.enqueue("leaves", count=5)
    start(project, containers, 0)
    for run in runs:
        project.until_status(run, "succeeded")
    until(lambda: len(list(project.folder.glob("left-*"))) == 5, "five processes are left behind")

    project.touch("go")

    until(
        lambda: not zombies(containers[0].pid) and not list_of_left(containers[0].pid),
        "none is left, and no zombie",
    )
    assert containers[0].poll() is None


def list_of_left(pid: int) -> list[int]:
    """Return the living processes below ``pid`` that a command has left behind."""
    found = []
    for each in descendants(pid):
        try:
            if b"left-$$" in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_stopped_agent_changes_nothing_when_it_goes_on_beside_its_successor(
    project: Project,
) -> None:
    (project.folder / "run").write_text(agent_exports(project.folder, project.dsn) + 'exec "$@"\n')
    project.executors = {"engine": {"type": "command", "command": ["/bin/sh", "run"]}}
    project.sync(first_attempt_waits={"executor": "engine", "lease": "4s", "max_attempts": 2})
    [run] = project.enqueue("first_attempt_waits")
    worker = project.start("work", "--loop")
    project.until_started(run)
    [ticket] = project.db.execute("select agent from yamlsched.attempt_begins").fetchall()
    agent = int(ticket.agent.split(":")[1])
    handler = int((project.folder / "calls").read_text().split()[3])

    # given an agent that is stopped until another attempt has succeeded
    os.kill(agent, signal.SIGSTOP)
    project.until_status(run, "succeeded")
    row: Any = project.row(run)
    os.kill(agent, signal.SIGCONT)

    # then it kills its handler, and writes nothing
    until(lambda: not is_alive(handler) and not is_alive(agent), "the first agent has ended")
    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
    # its place in the engine is free later
    assert project.row(run)._replace(executor=None) == row._replace(executor=None)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
