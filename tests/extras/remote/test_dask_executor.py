"""Executors of ``type: dask``: what runs do on a real cluster with Dask's own settings.

Leases last 20 seconds unless a test waits for their end. Faults of the cluster are in test_dask_faults.py.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.dask_cluster import a_cluster
from support.database import temporary_database
from support.project import TESTS, Process, Project, a_project, is_alive, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """Yield a project with a cluster of one worker, which all tests of this module use."""
    folder = tmp_path_factory.mktemp("project")
    with (
        temporary_database(server, template) as dsn,
        a_project(folder, dsn) as project,
        a_cluster(project) as cluster,
    ):
        cluster.start_worker("--resources", "GPU=1")
        yield project


@pytest.fixture
def project(shared: Project) -> Project:
    shared.executors["cluster"] = {
        "type": "dask",
        "address": shared.executors["cluster"]["address"],
    }
    return shared


def on_cluster(**job: Any) -> dict[str, Any]:
    return {"executor": "cluster", "max_attempts": 2, "lease": "20s", **job}


def run_to_end(project: Project, **env: str) -> Process:
    """Have a worker execute what is there until each run has ended."""
    worker = project.start("work", "--loop", **env)
    until(
        lambda: not set(project.statuses()) & {"queued", "failed", "running"}, "all runs have ended"
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (0, -signal.SIGTERM), worker.text
    return worker


def handler_of(project: Project, run: int) -> int:
    """Return the process id of the first handler call of ``run``."""
    lines = [line.split() for line in (project.folder / "calls").read_text().splitlines()]
    return next(
        int(pid) for what, number, _, pid in lines if (what, int(number)) == ("started", run)
    )


def test_what_handlers_do_is_the_same_on_a_dask_worker(project: Project) -> None:
    project.db.execute("create table public.ledger (run_id bigint)")
    names = ("nothing", "returns_json", "records_and_transacts", "fails")
    command = ["/bin/sh", "-c", "echo $YAMLSCHED_PAYLOAD; exit 3"]
    jobs = {name: on_cluster() for name in names}
    project.sync(backup=on_cluster(command=command, max_attempts=1), **jobs)
    runs = {name: project.enqueue(name)[0] for name in names}
    [backup] = project.enqueue("backup", {"colour": "blue"})

    worker = run_to_end(project)

    assert project.summary(runs["nothing"]) == ("succeeded", 1, 1, 1, 0), worker.text
    assert project.row(runs["returns_json"]).result == {"rows": 3, "text": "é"}
    assert project.summary(runs["records_and_transacts"]) == ("succeeded", 1, 1, 1, 0), worker.text
    assert project.summary(runs["fails"]) == ("dead", 2, 2, 0, 2)
    assert project.row(runs["fails"]).last_error == "no route to host"
    row = project.row(backup)
    assert (row.status, row.error_type, row.last_error) == (
        "dead",
        "exit code 3",
        '{"colour": "blue"}',
    )
    assert [output.output for output in project.outputs(backup)] == ['{"colour": "blue"}\n']


def test_resources_limit_how_many_attempts_execute_at_once(project: Project) -> None:
    project.sync(waits_for_file=on_cluster(resources={"GPU": 0.5}), nothing=on_cluster())
    runs = project.enqueue("waits_for_file", {"name": "resources"}, count=3)
    worker = project.start("work", "--loop")

    until(lambda: sum(project.calls("started", run) for run in runs) == 2)
    # needs no resource: when it has ended, the third one would have started too
    [other] = project.enqueue("nothing")
    project.until_status(other, "succeeded")
    started = [project.calls("started", run) for run in runs]
    project.touch("resources")
    for run in runs:
        project.until_status(run, "succeeded")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert sorted(started) == [0, 1, 1]
    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}


def test_what_no_dask_worker_can_take_is_withdrawn_and_refunded(project: Project) -> None:
    project.executors["cluster"]["begin_within"] = "1s"
    project.sync(nothing=on_cluster(resources={"FPGA": 1}))
    [run] = project.enqueue("nothing")

    worker = project.work("--max-runs", "1")

    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    assert 'why="it had not begun after 1s"' in worker.text
    project.start("cancel", str(run)).wait()


def test_a_cancelled_run_is_stopped_on_the_dask_worker(project: Project) -> None:
    project.sync(hangs=on_cluster())
    [run] = project.enqueue("hangs")
    worker = project.start("work")
    project.until_started(run)
    handler = handler_of(project, run)

    project.start("cancel", str(run)).wait()

    assert worker.wait() == 0
    until(lambda: not is_alive(handler), "the handler was stopped")
    assert project.row(run).status == "cancelled"


def test_the_timeout_is_enforced_on_the_dask_worker(project: Project) -> None:
    project.sync(ignores_signals=on_cluster(timeout="1s", max_attempts=1))
    [run] = project.enqueue("ignores_signals")

    run_to_end(project)

    assert project.summary(run) == ("dead", 1, 1, 0, 1)
    assert project.row(run).last_error == "still running after 1s, killed"


def test_a_worker_without_loop_leaves_what_has_begun_to_the_cluster_and_another_one_applies_its_outcome(
    project: Project,
) -> None:
    project.sync(waits_for_file=on_cluster(resources={"GPU": 1}))
    first, second = project.enqueue("waits_for_file", {"name": "left"}, count=2)
    worker = project.start("work")
    until(lambda: project.calls("started", first) + project.calls("started", second) == 1)
    [waiting] = [run for run in (first, second) if not project.calls("started", run)]

    # the cluster knows that the GPU is in use, although the client that has submitted the task is gone
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "attempt.begun" in worker.text
    assert project.summary(waiting) == ("queued", 0, 0, 0, 0)
    other = project.start("work", "--loop")
    until(lambda: project.row(waiting).status == "running")
    project.touch("left")
    for run in (first, second):
        project.until_status(run, "succeeded")
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    assert {project.summary(run) for run in (first, second)} == {("succeeded", 1, 1, 1, 0)}


def test_a_job_that_is_paused_does_not_begin_and_costs_nothing(project: Project) -> None:
    project.sync(waits_for_file=on_cluster(resources={"GPU": 1}))
    runs = project.enqueue("waits_for_file", {"name": "paused"}, count=2)
    worker = project.start("work")
    until(lambda: all(project.row(run).status == "running" for run in runs), "both are claimed")
    until(lambda: sum(project.calls("started", run) for run in runs) == 1)
    waiting, running = sorted(runs, key=lambda run: project.calls("started", run))

    assert project.start("pause", "waits_for_file", "--reason", "test").wait() == 0
    project.touch("paused")

    assert worker.wait() == 0
    until(lambda: project.start("work").wait() == 0 and project.row(running).status == "succeeded")
    assert project.summary(running) == ("succeeded", 1, 1, 1, 0)
    assert project.summary(waiting) == ("queued", 0, 0, 0, 0)
    assert (
        'why="its job was paused, disabled or retired before the engine started it"' in worker.text
    )
    assert project.start("resume", "waits_for_file").wait() == 0
    run_to_end(project)
    assert project.summary(waiting) == ("succeeded", 1, 1, 1, 0)


def test_only_the_gateway_loads_dask(project: Project) -> None:
    project.sync(nothing=on_cluster(resources={"FPGA": 1}))
    [run] = project.enqueue("nothing")
    worker = project.start("work")
    [gateway] = until(worker.children, "the worker has a gateway")
    until(lambda: "/msgpack/" in Path(f"/proc/{gateway}/maps").read_text())

    loads_msgpack = "/msgpack/" in Path(f"/proc/{worker.pid}/maps").read_text()
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert not loads_msgpack
    project.start("cancel", str(run)).wait()


def test_a_host_without_dask_claims_nothing_for_it_and_says_what_to_install(
    project: Project,
) -> None:
    project.sync(nothing=on_cluster(), nap={})
    [remote], [local] = project.enqueue("nothing"), project.enqueue("nap")
    hidden = "import sys; sys.modules['distributed'] = None"

    worker = project.work(before=hidden)

    assert project.summary(local) == ("succeeded", 1, 1, 1, 0)
    assert project.summary(remote) == ("queued", 0, 0, 0, 0)
    assert "jobs.not_startable" in worker.text
    doctor = project.start("doctor", "--path", str(TESTS), before=hidden)
    assert doctor.wait() == 1
    report = (project.folder / f"out-{project.number}").read_text()
    assert "Dask is not installed on this host, which claims no runs for this executor" in report
    assert 'pip install "yamlsched[dask]"' in report
    project.start("cancel", str(remote)).wait()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_a_cluster_with_tls_is_reached_with_the_certificates_of_the_configuration_of_dask(
    server: str, template: str, tmp_path: Path
) -> None:
    settings = certificates(tmp_path)
    with (
        temporary_database(server, template) as dsn,
        a_project(tmp_path, dsn) as project,
        a_cluster(project, "tls", settings) as cluster,
    ):
        cluster.start_worker()
        project.sync(nothing=on_cluster())
        [run] = project.enqueue("nothing")

        without = project.start("work")
        until(lambda: "executor.unreachable" in without.text)
        without.signal(signal.SIGTERM)
        assert without.wait() == 0
        run_to_end(project, **settings)

        assert cluster.address.startswith("tls://")
        assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and one certificate that it signed; return the settings of Dask that use them."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca",
        "req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=127.0.0.1",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem -days 2 -extfile names",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    settings = {f"{prefix}CA_FILE": str(folder / "ca.pem")}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        settings[f"{prefix}{role}__CERT"] = str(folder / "node.pem")
        settings[f"{prefix}{role}__KEY"] = str(folder / "node.key")
    return settings


def test_doctor_reports_what_it_finds_on_the_cluster(project: Project) -> None:
    project.executors["nowhere"] = {"type": "dask", "address": "tcp://127.0.0.1:1"}
    project.sync(nothing=on_cluster())

    process = project.start("doctor", "--path", str(TESTS))
    assert process.wait() == 1
    del project.executors["nowhere"]

    lines = (project.folder / f"out-{project.number}").read_text().splitlines()
    found = {
        line[6:].split("  ")[0]: line for line in lines if line.startswith(("ok", "warn", "fail"))
    }
    assert found["executor cluster"].startswith("ok")
    assert "Python " + sys.version.split()[0] in found["executor cluster"]
    assert "the scheduler at tcp://127.0.0.1:1 cannot be reached" in found["executor nowhere"]
