"""A fault of one executor stops that executor, and never the worker, its local jobs, or runs that have not begun."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.database import temporary_database
from support.project import Project, a_project, agent_exports, until

ANSWERS = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "banner": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
    "zeros": bytes(65_536),
    "noise": bytes((7 * nth * nth + 13) % 256 for nth in range(65_536)),
}


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


@contextmanager
def a_foreign_service(answer: bytes) -> Iterator[tuple[int, list[int]]]:
    """Listen on a port of the loopback interface, and answer each connection; yield the port and the connections."""
    connections: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(1)
            with connection:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def away(**job: Any) -> dict[str, Any]:
    return {"executor": "engine", "max_attempts": 1, **job}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_foreign_service_at_the_address_of_a_scheduler_stops_no_worker_and_costs_no_attempt(
    project: Project, answer: str
) -> None:
    with a_foreign_service(ANSWERS[answer]) as (port, connections):
        project.executors = {"engine": {"type": "dask", "address": f"tcp://127.0.0.1:{port}"}}
        project.sync(nothing=away(), waits_for_file={})
        [remote], [local] = project.enqueue("nothing"), project.enqueue("waits_for_file")
        worker = project.start("work", "--loop")
        project.until_started(local)

        # when it was asked several times
        until(lambda: len(connections) >= 4)
        project.touch("go")
        project.until_status(local, "succeeded")

        # then the worker goes on, and says what is wrong
        assert worker.is_alive
        assert "executor.unreachable executor=engine" in worker.text
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert project.summary(local) == ("succeeded", 1, 1, 1, 0)
        assert project.row(remote).status == "queued"
        assert project.row(remote).attempts == 0

        # and doctor says it without a traceback
        doctor = project.start("doctor")
        doctor.wait()
        said = (project.folder / f"out-{project.number}").read_text()
        assert f"the scheduler at tcp://127.0.0.1:{port} cannot be reached" in said
        assert "Traceback" not in doctor.text


def test_a_program_that_is_missing_on_this_host_costs_no_attempt_and_no_local_job_and_is_found_later(
    project: Project,
) -> None:
    program = project.folder / "launch"
    project.executors = {"engine": {"type": "command", "command": ["./launch"]}}
    project.sync(nothing=away(), nap={})
    [remote], [local] = project.enqueue("nothing"), project.enqueue("nap")
    # without the checks that would keep this host from claiming the run
    worker = project.start("work", "--loop", "--skip-handler-checks")
    project.until_status(local, "succeeded")
    until(lambda: worker.text.count("executor.unavailable executor=engine") >= 2)
    assert "cannot be started: No such file or directory" in worker.text
    assert project.row(remote).attempts == 0

    program.write_text(f'#!/bin/sh\n{agent_exports(project.folder, project.dsn)}exec "$@"\n')
    program.chmod(0o755)

    project.until_status(remote, "succeeded")
    assert project.summary(remote) == ("succeeded", 1, 1, 1, 0)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_limit_of_open_files_costs_no_attempt(project: Project) -> None:
    # given more runs than programs that a gateway can start with so few descriptors
    (project.folder / "launch").write_text(f'{agent_exports(project.folder, project.dsn)}exec "$@"\n')
    project.executors = {"engine": {"type": "command", "command": ["/bin/sh", "launch"], "concurrency": 200}}
    project.sync(waits_for_file=away())
    runs = project.enqueue("waits_for_file", count=30)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))"
    worker = project.start("work", "--loop", before=limit)
    until(lambda: "executor.unavailable executor=engine" in worker.text)
    assert "Too many open files" in worker.text
    project.touch("go")
    for run in runs:
        project.until_status(run, "succeeded")

    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


FORK_FAILS_TWICE = """
import yamlsched.worker.forking as forking
from yamlsched.errors import EnvironmentFailed
fork, tries = forking.fork, []
def failing(name, *given):
    if name == "gateway" and len(tries) < 2:
        tries.append(name)
        raise EnvironmentFailed("no gateway process could be started: Resource temporarily unavailable")
    return fork(name, *given)
forking.fork = failing
"""


def test_a_gateway_that_cannot_be_forked_costs_no_attempt_and_no_local_job(project: Project) -> None:
    (project.folder / "launch").write_text(f'{agent_exports(project.folder, project.dsn)}exec "$@"\n')
    project.executors = {"engine": {"type": "command", "command": ["/bin/sh", "launch"]}}
    project.sync(nothing=away(), nap={})
    remote, [local] = project.enqueue("nothing", count=4), project.enqueue("nap")

    worker = project.start("work", "--loop", before=FORK_FAILS_TWICE)

    project.until_status(local, "succeeded")
    for run in remote:
        project.until_status(run, "succeeded")
    assert {project.summary(run) for run in remote} == {("succeeded", 1, 1, 1, 0)}
    assert worker.text.count("executor.unavailable executor=engine") == 2
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
