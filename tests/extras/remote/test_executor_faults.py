"""A fault of one executor stops that executor, and never the worker, its local jobs, or runs that have not begun."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.database import temporary_database
from support.project import ForkServer, Process, Project, a_project, agent_exports, is_alive, until
from yamlsched import __version__
from yamlsched.cli import cli

pytestmark = pytest.mark.story

ORDINARY_USER = 60_417
AS_ORDINARY_USER = [
    "setpriv",
    f"--reuid={ORDINARY_USER}",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
]
if os.getuid() != 0:
    AS_ORDINARY_USER = []
ANSWERS = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "banner": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
    "zeros": bytes(65_536),
    "silence": None,
    "noise": bytes((7 * nth * nth + 13) % 256 for nth in range(65_536)),
}


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


@contextmanager
def a_foreign_service(answer: bytes | None) -> Iterator[tuple[int, list[socket.socket]]]:
    """Listen on a port of the loopback interface, and answer each connection; yield the port and the connections.

    None: they stay open, without an answer.
    """
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            if answer is not None:
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
            for connection in connections:
                connection.close()


def away(**job: Any) -> dict[str, Any]:
    return {"executor": "engine", "max_attempts": 1, **job}


def faults(project: Project) -> list[Any]:
    return project.db.execute("select l.executor, l.reason from yamlsched.lacks l").fetchall()


def verb(project: Project, *words: str) -> str:
    return CliRunner().invoke(cli, [*words, "--dsn", project.dsn, "--namespace", "default"]).output


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_foreign_service_at_the_address_of_a_scheduler_stops_no_worker_and_costs_no_attempt(
    project: Project, answer: str
) -> None:
    with a_foreign_service(ANSWERS[answer]) as (port, connections):
        project.executors = {"engine": {"type": "dask", "address": f"tcp://127.0.0.1:{port}"}}
        project.sync(nothing=away(lease="30s"), waits_for_file={"lease": "30s"})
        [remote], [local] = project.enqueue("nothing"), project.enqueue("waits_for_file")
        worker = project.start("work", "--loop")
        project.until_started(local)

        # when it was asked several times, other hosts are told why
        reason = f'cannot start job nothing: executor "engine": the scheduler at tcp://127.0.0.1:{port} cannot be reached'
        until(lambda: len(connections) >= (1 if answer == "silence" else 4))
        until(lambda: "executor.unreachable executor=engine" in worker.text)
        until(lambda: faults(project))
        assert reason in verb(project, "status")
        assert "no host can start job nothing" not in verb(project, "status", "--check")
        project.db.execute("update yamlsched.lacks set since = since - interval '3 minutes'")
        assert "no host can start job nothing: executor" in verb(project, "status", "--check")
        assert "no host can start job nothing: executor" in verb(project, "report")
        project.touch("go")
        project.until_status(local, "succeeded")

        # then the worker goes on, and says what is wrong
        assert worker.is_alive
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


NOT_BEGUN = {
    "refused": (
        "echo Permission denied >&2; exit 255",
        "ended before the attempt had begun: exit code 255: Permission denied",
    ),
    "usage": ('"$1" --no-such-option; exit', "exit code 2"),
    "no DSN": ('unset YAMLSCHED_DSN; exec "$@"', "no DSN on the engine's host"),
    "terminated": ("exit 143", "exit code 143"),
    "nothing": ("exit 0", "it had not begun after 10s"),
    "another format": (
        'shift 2; exec python -c "import yamlsched.extras.remote.spec as spec, yamlsched.cli as cli; '
        'spec.FORMAT = 1; cli.main()" attempt "$@"',
        f"yamlsched {__version__} of the worker describes attempts in format 2, yamlsched {__version__} here reads 1",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NOT_BEGUN)
def test_a_program_that_starts_no_agent_costs_no_attempt_is_tried_later_each_time_and_the_cause_is_named(
    project: Project, case: str
) -> None:
    script, why = NOT_BEGUN[case]
    exports = agent_exports(project.folder, project.dsn)
    (project.folder / "launch").write_text(
        f'{exports}shift\ntest -e repaired || {{ {script}; }}\nexec "$@"\n'
    )
    command = ["/bin/sh", "launch", "{id}"]
    project.executors = {
        "engine": {
            "type": "command",
            "command": command,
            "begin_within": "10s" if case == "nothing" else "2m",
        }
    }
    project.sync(nothing=away(lease="30s"))
    [run] = project.enqueue("nothing")
    worker = project.start("work", "--loop")

    until(
        lambda: (
            project.db.execute("select count(*) from yamlsched.attempt_begins").fetchone()[0] == 3
        )
    )
    until(lambda: project.row(run).status == "queued")

    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    assert (project.row(run).run_at - project.row(run).updated_at).total_seconds() > 3
    assert why in worker.text
    assert why in verb(project, "status")
    assert why in verb(project, "doctor")
    project.db.execute("update yamlsched.lacks set since = since - interval '6 minutes'")
    assert why in verb(project, "report")
    project.touch("repaired")
    project.until_status(run, "succeeded")
    until(lambda: not faults(project))
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    end(worker)


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
    until(lambda: [found.executor for found in faults(project)] == ["engine"])
    assert 'executor "engine": "./launch" cannot be started: No such file or directory' in verb(
        project, "status"
    )
    program.write_text(f'#!/bin/sh\n{agent_exports(project.folder, project.dsn)}exec "$@"\n')
    program.chmod(0o755)

    project.until_status(remote, "succeeded")
    assert project.summary(remote) == ("succeeded", 1, 1, 1, 0)
    until(lambda: not faults(project))
    assert "cannot start job" not in verb(project, "status")
    end(worker)


def launch_here(project: Project) -> None:
    (project.folder / "launch").write_text(
        f'{agent_exports(project.folder, project.dsn)}exec "$@"\n'
    )
    project.executors = {
        "engine": {"type": "command", "command": ["/bin/sh", "launch"], "concurrency": 200}
    }


def limit_processes(pid: int, count: int | None) -> None:
    """Change how many processes the user of ``pid`` may have when it forks; None: as many as possible."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = "unlimited" if hard == resource.RLIM_INFINITY else hard
    subprocess.run(
        [
            *AS_ORDINARY_USER,
            "prlimit",
            f"--pid={pid}",
            f"--nproc={most if count is None else count}:",
        ],
        check=True,
    )


def end(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.fixture
def ordinary(server: str, template: str) -> Iterator[Project]:
    """Yield a project whose processes are those of a user with a limit of processes: root has none."""
    folder = Path(tempfile.mkdtemp(prefix="ordinary-user-"))
    if AS_ORDINARY_USER:
        os.chown(folder, ORDINARY_USER, -1)
    fork_server = ForkServer(AS_ORDINARY_USER)
    with temporary_database(server, template) as dsn:
        project = Project(fork_server, folder, dsn)
        try:
            yield project
        finally:
            fork_server.kill(project.pids)
            project.close()
            fork_server.close()
            shutil.rmtree(folder)


def test_a_limit_of_open_files_costs_no_attempt(project: Project) -> None:
    # given more runs than programs that a gateway can start with so few descriptors
    launch_here(project)
    project.sync(waits_for_file=away(lease="30s"))  # so many agents begin slowly
    runs = project.enqueue("waits_for_file", count=30)
    worker = project.start(
        "work",
        "--loop",
        before="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))",
    )
    until(lambda: "executor.unavailable executor=engine" in worker.text)
    assert "Too many open files" in worker.text
    project.touch("go")
    for run in runs:
        project.until_status(run, "succeeded")

    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    end(worker)


TWO_GATEWAYS_HAVE_NO_FILES = """
import resource
import yamlsched.worker.forking as forking
fork, gateways = forking.fork, []
def limited(kind, count, do):
    gateways.extend([kind] * (kind == "gateway"))
    def run(parent, pipes):
        if kind == "gateway" and len(gateways) <= 2:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        do(parent, pipes)
    return fork(kind, count, run)
forking.fork = limited
"""


def test_a_gateway_that_dies_before_it_reads_what_it_was_given_costs_no_attempt_and_no_wait(
    project: Project,
) -> None:
    launch_here(project)
    project.sync(nothing=away(), nap={})
    runs, [local] = project.enqueue("nothing", count=3), project.enqueue("nap")

    worker = project.start("work", "--loop", before=TWO_GATEWAYS_HAVE_NO_FILES)

    # what a dead gateway did not read is returned, not left to another one, which would take it for started
    project.until_status(local, "succeeded")
    for run in runs:
        project.until_status(run, "succeeded")
    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    assert (
        worker.text.count('gateway.died executor=engine in_flight=3 error="OSError: [Errno 24]')
        == 2
    )
    assert (
        worker.text.count(
            'executor.unavailable executor=engine error="its gateway process dies: OSError'
        )
        == 2
    )
    end(worker)


def test_a_limit_of_processes_costs_no_attempt(ordinary: Project) -> None:
    launch_here(ordinary)
    ordinary.sync(nothing=away())
    runs = ordinary.enqueue("nothing", count=4)
    limit = "import resource as r; r.setrlimit(r.RLIMIT_NPROC, (1, r.getrlimit(r.RLIMIT_NPROC)[1]))"
    worker = ordinary.start("work", "--loop", before=limit)
    until(lambda: worker.text.count("executor.unavailable executor=engine") >= 2)
    assert "no gateway process can be started: Resource temporarily unavailable" in worker.text
    until(lambda: ordinary.statuses() == {"queued": 4})
    assert {ordinary.row(run).attempts for run in runs} == {0}

    limit_processes(worker.pid, None)

    for run in runs:
        ordinary.until_status(run, "succeeded")
    assert {ordinary.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    end(worker)


def test_a_gateway_that_is_lost_and_cannot_be_replaced_holds_up_no_local_job_and_no_shutdown(
    ordinary: Project,
) -> None:
    # given a local attempt, and one that waits in the engine
    launch_here(ordinary)
    launch = ordinary.folder / "launch"
    launch.write_text("while ! [ -e remote ]; do sleep 0.01; done\n" + launch.read_text())
    ordinary.sync(first_attempt_waits=away(lease="4s"), waits_for_file={})
    [remote], [local] = ordinary.enqueue("first_attempt_waits"), ordinary.enqueue("waits_for_file")
    worker = ordinary.start("work", "--loop", "--grace", "1s")
    ordinary.until_started(local)
    until(
        lambda: any(
            Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in worker.children()
        )
    )
    [gateway] = [
        pid for pid in worker.children() if Path(f"/proc/{pid}/task/{pid}/children").read_text()
    ]

    # when the gateway dies, and no process can be started any more
    limit_processes(worker.pid, 1)
    os.kill(gateway, signal.SIGKILL)
    until(lambda: "executor.unavailable executor=engine" in worker.text)

    # then the local attempt goes on
    ordinary.touch("go")
    ordinary.until_status(local, "succeeded")
    assert ordinary.summary(local) == ("succeeded", 1, 1, 1, 0)

    # and the worker ends when it is asked to, and leaves the remote attempt, which begins, to its agent
    ordinary.touch("remote")
    ordinary.until_started(remote)
    end(worker)
    assert ordinary.row(remote).status == "running"
    handler = next(
        int(line.split()[-1])
        for line in (ordinary.folder / "calls").read_text().splitlines()
        if line.split()[:2] == ["started", str(remote)]
    )
    assert is_alive(handler)
    [ticket] = ordinary.db.execute("select agent from yamlsched.attempt_begins").fetchall()
    os.kill(int(ticket.agent.split(":")[-2]), signal.SIGKILL)
    until(lambda: not is_alive(handler))


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


def test_a_gateway_that_cannot_be_forked_costs_no_attempt_and_no_local_job(
    project: Project,
) -> None:
    launch_here(project)
    project.sync(nothing=away(), nap={})
    remote, [local] = project.enqueue("nothing", count=4), project.enqueue("nap")

    worker = project.start("work", "--loop", before=FORK_FAILS_TWICE)

    project.until_status(local, "succeeded")
    for run in remote:
        project.until_status(run, "succeeded")
    assert {project.summary(run) for run in remote} == {("succeeded", 1, 1, 1, 0)}
    assert worker.text.count("executor.unavailable executor=engine") == 2
    end(worker)
