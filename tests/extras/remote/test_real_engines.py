"""The examples of docs/executors.md for ssh and Slurm, as they are written there, on a real sshd and a real Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from extras.remote.test_engines import prepare, project
from extras.remote.test_remote_executor import agents, gateway_of, run_to_end, tickets

from support.project import Process, Project, agent_exports, is_alive, until
from support.real_engines import Engine, Slurm, an_engine, why_not

__all__ = ["project"]

pytestmark = pytest.mark.engines

WORDS = ["a  b", "it's", '"$HOME"', "--mem=1", "; exit 3", "é"]
both = pytest.mark.parametrize("engine", ["gpu1", "slurm"], indirect=True)
slurm = pytest.mark.parametrize("engine", ["slurm"], indirect=True)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engine]]:
    """Return a function that returns an engine, which is started when it is first needed."""
    started: dict[str, Engine] = {}
    with ExitStack() as stack:

        def get(name: str) -> Engine:
            if name not in started:
                started[name] = stack.enter_context(an_engine(name, tmp_path_factory.mktemp(name)))
            return started[name]

        yield get


@pytest.fixture
def engine(request: pytest.FixtureRequest, engines: Callable[[str], Engine]) -> Iterator[Engine]:
    if why := why_not(request.param):
        pytest.skip(why)
    engine = engines(request.param)
    yield engine
    engine.clear()


@dataclass
class Stage:
    """A project that uses the example of the page for an engine."""

    project: Project
    engine: Engine

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": self.engine.path, **self.engine.environment}

    def start(self, *words: str) -> Process:
        return self.project.start(*words, **self.environment)

    def run_to_end(self) -> None:
        run_to_end(self.project, **self.environment)

    def kill_host(self, worker: Process) -> None:
        """Kill the worker, its gateway, and the programs that this has started."""
        gateway = gateway_of(worker)
        os.kill(worker.pid, signal.SIGSTOP)  # or it would start another gateway
        programs = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
        for pid in (gateway, *map(int, programs), worker.pid):
            os.kill(pid, signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL

    def until_begun(self, worker: Process, run: int) -> int:
        """Wait until the handler is called and the worker knows it; return the process id of the handler."""
        self.project.until_started(run)
        until(
            lambda: f"run={run} executor=" in worker.text,
            "the worker knows that the attempt has begun",
        )
        return int((self.project.folder / "calls").read_text().split()[3])


@pytest.fixture
def stage(engine: Engine, project: Project, request: pytest.FixtureRequest) -> Stage:
    name = request.node.callspec.params["engine"]
    prepare(project, name)
    (project.folder / "etc" / "app" / "secrets.env").write_text(
        agent_exports(project.folder, project.dsn)
    )
    job = {"executor": name, "max_attempts": 1, "lease": "20s"}
    says = {"command": ["printf", "%s|", *WORDS], "output": {"keep": "always"}}
    queued = {"handler": "support.handlers.nothing", "lease": "2m"}
    project.sync(nothing=job, fails=job, says=job | says, waits_for_file=job, queued=job | queued)
    return Stage(project, engine)


@both
def test_an_example_executes_what_succeeds_and_what_fails_and_keeps_each_word_of_a_command(
    stage: Stage,
) -> None:
    project = stage.project
    [good], [bad], [says] = (project.enqueue(job) for job in ("nothing", "fails", "says"))

    stage.run_to_end()

    assert project.summary(good) == ("succeeded", 1, 1, 1, 0)
    assert project.summary(bad) == ("dead", 1, 1, 0, 1)
    assert project.failures(bad)[0].error == "no route to host"
    [kept] = project.outputs(says)
    assert kept.output == "".join(f"{word}|" for word in WORDS)


@both
def test_a_run_that_is_cancelled_while_it_executes_is_stopped(stage: Stage) -> None:
    project = stage.project
    [run] = project.enqueue("waits_for_file")
    worker = stage.start("work", "--loop")
    handler = stage.until_begun(worker, run)

    assert stage.start("cancel", str(run)).wait() == 0

    until(lambda: not is_alive(handler), "the handler is stopped")
    until(lambda: not agents(project) and not stage.engine.jobs(), "the engine has no job")
    assert project.summary(run) == ("cancelled", 1, 1, 0, 0)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@both
def test_an_attempt_that_has_begun_goes_on_when_the_host_of_its_worker_dies(stage: Stage) -> None:
    project = stage.project
    [run] = project.enqueue("waits_for_file")
    worker = stage.start("work", "--loop")
    stage.until_begun(worker, run)

    stage.kill_host(worker)

    dead_at = project.db.execute("select clock_timestamp() as now").fetchone().now
    until(lambda: tickets(project, run)[0].seen_at > dead_at, "the agent renews the lease")
    project.touch("go")
    stage.run_to_end()
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@slurm
@pytest.mark.parametrize("calls", [1, 0], ids=["before the lease ends", "after it"])
def test_a_run_that_waits_in_slurms_queue_when_the_host_of_its_worker_dies_is_executed_once(
    stage: Stage, calls: int
) -> None:
    project, cluster = stage.project, stage.engine
    assert isinstance(cluster, Slurm)
    cluster.hold()
    [run] = project.enqueue("queued")
    worker = stage.start("work", "--loop")
    until(lambda: cluster.jobs() == ["PENDING"])

    stage.kill_host(worker)
    if calls == 0:
        sessions = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        until(
            lambda: not project.db.execute(sessions).fetchall(),
            "nothing of the worker is executed any more",
        )
        project.end_leases()
    cluster.hold(False)
    until(lambda: not cluster.jobs(), "Slurm has started the agent, which has exited")

    assert project.calls("started", run) == calls
    stage.run_to_end()
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@slurm
def test_scancel_takes_out_of_slurms_queue_what_is_cancelled_and_what_a_shutdown_leaves(
    stage: Stage,
) -> None:
    project, cluster = stage.project, stage.engine
    assert isinstance(cluster, Slurm)
    cluster.hold()
    cancelled, left = project.enqueue("nothing", count=2)
    worker = stage.start("work", "--loop")
    until(lambda: cluster.jobs() == ["PENDING", "PENDING"])

    assert stage.start("cancel", str(cancelled)).wait() == 0
    until(lambda: cluster.jobs() == ["PENDING"], "the cancelled one has gone")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert cluster.jobs() == []
    assert "executor.withdraw_failed" not in worker.text
    assert project.summary(cancelled) == ("cancelled", 1, 0, 0, 0)
    assert project.summary(left) == ("queued", 0, 0, 0, 0)
    cluster.hold(False)
    stage.run_to_end()
    assert project.summary(left) == ("succeeded", 1, 1, 1, 0)


def stop(engine: Engine, daemon: str) -> Callable[[], Any]:
    engine.stop(daemon)
    return lambda: engine.start(daemon)


def accept_another_key(engine: Engine) -> Callable[[], Any]:
    keys = engine.folder / "authorized_keys"
    accepted = keys.read_text()
    keys.write_text((engine.folder / "host_key.pub").read_text())
    return lambda: keys.write_text(accepted)


FAULTS: list[tuple[str, Callable[[Engine], Callable[[], Any]], str]] = [
    (
        "gpu1",
        lambda engine: stop(engine, "sshd"),
        "exit code 255: ssh: connect to host 127.0.0.1 port",
    ),
    ("gpu1", accept_another_key, "exit code 255: root@127.0.0.1: Permission denied"),
    (
        "slurm",
        lambda engine: stop(engine, "slurmctld"),
        "exit code 1: sbatch: error: Batch job submission failed",
    ),
]


@pytest.mark.parametrize(
    "engine, break_it, error", FAULTS, indirect=["engine"], ids=["no sshd", "no key", "slurmctld"]
)
def test_an_engine_that_takes_no_attempt_costs_none(
    stage: Stage, break_it: Callable[[Engine], Callable[[], Any]], error: str
) -> None:
    project = stage.project
    repair = break_it(stage.engine)
    [run] = project.enqueue("nothing")
    try:
        worker = stage.start("work", "--max-runs", "1")
        assert worker.wait() == 0, worker.text
    finally:
        repair()
        stage.engine.until_ready()

    assert "executor.unavailable" in worker.text
    assert error in worker.text
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    stage.run_to_end()
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
