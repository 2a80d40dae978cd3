"""Workers on a real sshd, Slurm and Dask, started as docs/started-workers.md says, and each fault of its table."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.engines import ENGINES, Engine, Slurm, Sshd, an_engine, write_worker
from support.project import Process, Project, a_project, is_alive, until

pytestmark = pytest.mark.engines

each = pytest.mark.parametrize("engine", ENGINES, indirect=True)
slurm = pytest.mark.parametrize("engine", ["Slurm"], indirect=True)
dask = pytest.mark.parametrize("engine", ["Dask"], indirect=True)

JOB = {
    "queue": "gpu",
    "max_attempts": 3,
    "backoff": {"policy": "fixed", "delay": "1s", "max_delay": "1s"},
}
OVERDUE = "run_at = now() - interval '1 minute', created_at = now() - interval '1 minute'"
IMPATIENT = (
    "import yamlsched.service.start_commands as s; s.TERMINATE_SECONDS, s.KILL_SECONDS = 2, 4"
)
DIES = (
    "import os, yamlsched.service.starts as s\n"
    "def run_command(*_): os.kill(os.getpid(), 9)\n"
    "s.run_command = run_command"
)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """The engines that were started, each when it was first needed."""

    class Started(dict[str, Engine]):
        def __missing__(self, name: str) -> Engine:
            self[name] = stack.enter_context(an_engine(name, tmp_path_factory.mktemp(name)))
            return self[name]

    with ExitStack() as stack:
        yield Started()


@pytest.fixture
def engine(request: pytest.FixtureRequest, engines: dict[str, Engine]) -> Engine:
    if why := ENGINES[request.param].why_not():
        pytest.skip(why)
    return engines[request.param]


@pytest.fixture
def stage(engine: Engine, own_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with a_project(tmp_path, own_dsn) as project:
        stage = Stage(project, engine)
        try:
            yield stage
        finally:
            stage.clear()


@dataclass
class Stage:
    """A project whose workers an engine starts, as the page says."""

    project: Project
    engine: Engine

    def __post_init__(self) -> None:
        self.worker = write_worker(self.project, "--idle-exit", "2s", "--grace", "1s")
        self.queue = {**self.engine.queue(self.worker), "concurrency": 1}

    def sync(self, max_workers: int = 1, **jobs: dict[str, Any]) -> None:
        self.queue["start"] = {**self.queue["start"], "max_workers": max_workers}
        self.project.queues = {"gpu": self.queue}
        self.project.sync(**{name: {**JOB, **job} for name, job in jobs.items()})

    def start_tick(self, before: str = "") -> Process:
        """Start a tick, for which what waits is due, and no failed start too recent."""
        for statement in (
            f"update yamlsched.job_runs set {OVERDUE} where status in ('queued', 'failed')",
            "update yamlsched.queue_states set next_start_at = now()",
        ):
            self.project.db.execute(statement.encode())
        return self.project.start("tick", before=before, **self.engine.environment)

    def tick(self, before: str = "") -> Process:
        tick = self.start_tick(before)
        assert tick.wait() == 0, tick.text
        return tick

    def count_failure(self) -> None:
        """Let a tick find that a start has failed: it starts nothing, because it is too early."""
        count = len(self.workers())
        if not self.failed_starts():  # else the tick of this start was slow, and has found it
            assert self.project.start("tick", **self.engine.environment).wait() == 0
        assert (len(self.workers()), self.failed_starts()) == (count, 1)

    def workers(self) -> Sequence[Any]:
        return self.project.db.execute(
            "select * from yamlsched.workers order by requested_at"
        ).fetchall()

    def failed_starts(self) -> int:
        rows = self.project.db.execute("select failed_starts from yamlsched.queue_states")
        return sum(row.failed_starts for row in rows)

    def until_begun(self, run: int, times: int = 1) -> tuple[str, int]:
        """Wait until the handler is called; return the id of the worker and of its process."""
        try:
            self.project.until_started(run, times)
        except AssertionError as error:
            rows = [*self.workers(), self.project.row(run)]
            raise AssertionError("\n".join(map(str, [error, *rows, self.logs()]))) from None
        id, *_, pid, _ = self.project.row(run).locked_by.split(":")
        return id, int(pid)

    def start_again(self, id: str, key: str = "") -> None:
        """Run the command again; for Dask, `key` makes it another task."""
        words = [word.replace("{worker}", id) for word in self.queue["start"]["command"]]
        env = {**os.environ, **self.engine.environment, "YAMLSCHED_WORKER": key or id}
        subprocess.run(words, cwd=self.project.folder, env=env, check=True, capture_output=True)

    def hold(self) -> None:
        """Let commands succeed, and no worker come."""
        if isinstance(self.engine, Sshd):  # it has no queue: the program is not there
            self.worker.rename(self.worker.with_name("away"))
        else:
            self.engine.hold()

    def release(self) -> None:
        """Let the workers come that were held."""
        if isinstance(self.engine, Sshd):
            self.worker.with_name("away").rename(self.worker)
            for row in self.workers():
                self.start_again(row.id)
        else:
            self.engine.hold(False)

    def expire(self) -> None:
        """Let the time of starts be over, and the next tick find that."""
        self.project.db.execute(
            "update yamlsched.workers set start_by = now() where reported_at is null"
        )

    def logs(self) -> str:
        """Return what the workers have printed."""
        paths = [*self.project.folder.glob("*.log"), self.engine.folder / "worker.log"]
        return "".join(path.read_text("utf-8", "replace") for path in paths if path.exists())

    def clear(self) -> None:
        mark = f"TEST_FOLDER={self.project.folder}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)
        self.engine.until_ready()
        self.engine.clear()


# -- in order --------------------------------------------------------------------------------------


@each
def test_the_example_of_the_page_starts_workers_which_exit_when_there_is_nothing_to_do(
    stage: Stage,
) -> None:
    project = stage.project
    stage.sync(max_workers=2, waits_for_others={})
    runs = project.enqueue("waits_for_others", count=2)  # each waits until both execute

    stage.tick()

    for run in runs:
        row = project.until_status(run, "succeeded")
        assert row.attempts == 1
    assert {project.row(run).locked_by.split(":")[0] for run in runs} == {
        row.id for row in stage.workers()
    }
    until(lambda: all(row.ended_at for row in stage.workers()), "the workers have left")
    assert [(row.runs, row.error) for row in stage.workers()] == [(1, None)] * 2
    stage.tick()
    assert (len(stage.workers()), stage.failed_starts()) == (2, 0)


# -- the table of faults ---------------------------------------------------------------------------


@each
def test_a_command_that_fails_is_a_failed_start_with_its_last_lines(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    stage.sync(nothing={})
    [run] = project.enqueue("nothing")
    engine.stop(engine.daemon)

    tick = stage.tick()

    [failed] = stage.workers()
    assert engine.error in failed.error
    assert "start.failed" in tick.text
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    engine.start(engine.daemon)
    engine.until_ready()
    stage.count_failure()
    stage.tick()
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@each
def test_a_command_that_does_not_return_is_a_failed_start_and_its_worker_may_come_all_the_same(
    stage: Stage,
) -> None:
    project, engine = stage.project, stage.engine
    stage.sync(nothing={})
    [run] = project.enqueue("nothing")
    engine.send(engine.daemon, signal.SIGSTOP)

    tick = stage.start_tick(IMPATIENT)

    assert tick.wait() == 0, tick.text
    [failed] = stage.workers()
    assert failed.error.startswith("it did not return within 2 s")
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    engine.send(engine.daemon, signal.SIGCONT)
    engine.until_ready()
    stage.count_failure()
    stage.tick()
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@each
def test_a_start_without_a_worker_has_failed_after_its_timeout_and_one_that_comes_later_works(
    stage: Stage,
) -> None:
    project = stage.project
    stage.sync(nothing={})
    [run] = project.enqueue("nothing")
    stage.hold()
    stage.tick()
    assert (len(stage.workers()), stage.failed_starts()) == (1, 0)

    stage.expire()
    stage.count_failure()

    [row] = stage.workers()
    assert row.error.startswith("no worker reported within ")
    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    stage.release()
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    [row] = stage.workers()
    assert project.row(run).locked_by.startswith(f"{row.id}:")


@each
def test_a_worker_that_is_killed_costs_an_attempt_and_another_one_is_started(stage: Stage) -> None:
    project = stage.project
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    id, pid = stage.until_begun(run)

    handler = int((project.folder / "calls").read_text().split()[3])
    until(lambda: stage.workers()[0].runs == 1, "it has reported that it executes a run")
    os.kill(pid, signal.SIGKILL)

    until(lambda: not is_alive(handler), "the handler dies with its worker")
    project.touch("go")
    project.end_leases()
    project.db.execute("update yamlsched.workers set seen_at = now() - interval '61 s'")
    stage.tick()
    assert stage.failed_starts() == 0  # it has executed a run
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
    lost, other = stage.workers()
    assert (lost.id, lost.error[:16]) == (id, "lost: last seen ")
    assert project.row(run).locked_by.startswith(f"{other.id}:")


@each
def test_a_worker_that_its_engine_stops_releases_its_run_at_no_cost(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    id, pid = stage.until_begun(run)

    engine.stop_worker(id, pid)

    until(lambda: project.row(run).status == "queued", "the run is released")
    assert project.summary(run) == ("queued", 0, 1, 0, 0)
    until(lambda: not is_alive(pid), "the worker has ended")
    project.touch("go")
    engine.until_ready()
    stage.tick()
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 2, 1, 0)
    assert len(stage.workers()) <= 2  # Dask may start the first one again


@each
def test_the_second_worker_with_an_id_exits(stage: Stage) -> None:
    project = stage.project
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    id, _ = stage.until_begun(run)

    stage.start_again(id, key="again")

    until(lambda: "worker.refused" in stage.logs(), "the second one is refused")
    project.touch("go")
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    assert len(stage.workers()) == 1


@each
def test_a_worker_above_max_workers_exits_and_is_no_failed_start(stage: Stage) -> None:
    project = stage.project
    stage.sync(waits_for_file={})
    [run, *_] = project.enqueue("waits_for_file", count=3)
    stage.hold()
    stage.tick()
    stage.expire()
    stage.count_failure()
    stage.tick()
    assert len(stage.workers()) == 2

    stage.release()

    until(lambda: "1 started workers of queue gpu are live" in stage.logs(), "one is refused")
    until(lambda: project.calls("started") == 1, "the other one works")
    assert [
        row.status for row in project.db.execute("select status from yamlsched.job_runs")
    ].count("running") == 1
    project.touch("go")
    until(lambda: project.statuses() == {"succeeded": 3}, "one worker executes all")
    until(lambda: all(row.ended_at for row in stage.workers()), "the workers have left")
    assert sorted(row.runs for row in stage.workers()) == [0, 3]
    stage.tick()
    assert stage.failed_starts() <= 1
    assert project.row(run).attempts == 1


@each
def test_a_host_that_dies_before_the_command_leaves_a_start_that_expires(stage: Stage) -> None:
    project = stage.project
    stage.sync(nothing={})
    [run] = project.enqueue("nothing")

    stage.tick(DIES)

    [row] = stage.workers()
    assert (row.reported_at, row.ended_at) == (None, None)
    stage.tick()
    assert len(stage.workers()) == 1  # which may still come
    stage.expire()
    stage.count_failure()
    stage.tick()
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@each
def test_a_worker_that_can_claim_nothing_is_a_failed_start_and_its_row_says_what_is_missing(
    stage: Stage,
) -> None:
    project = stage.project
    stage.sync(nothing={"requires_env": ["CUDA_LICENSE"]})
    [run] = project.enqueue("nothing")
    stage.tick()

    until(lambda: [row for row in stage.workers() if row.ended_at], "the worker has left")
    stage.count_failure()

    [row] = stage.workers()
    assert (row.error, row.runs) == ("it exited without a run although runs were due", 0)
    assert row.cannot_start == {"nothing": "the variable CUDA_LICENSE is not set"}
    assert project.summary(run) == ("queued", 0, 0, 0, 0)


# -- what one engine alone does --------------------------------------------------------------------


@slurm
def test_a_worker_does_not_need_the_daemons_of_slurm(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    assert isinstance(engine, Slurm)
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    _, pid = stage.until_begun(run)

    os.kill(parent_of(pid), signal.SIGKILL)  # slurmstepd
    for name in ("slurmd", "slurmctld"):
        engine.stop(name, signal.SIGKILL)
    project.touch("go")

    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    for name in ("slurmctld", "slurmd"):
        engine.start(name)


@slurm
def test_a_time_limit_of_slurm_releases_the_run_at_no_cost(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    assert isinstance(engine, Slurm)
    stage.queue["start"]["command"].insert(1, "--time=1")  # minute, the shortest there is
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    _, pid = stage.until_begun(run)

    until(lambda: project.row(run).status == "queued", "the limit is over", 150)

    assert project.summary(run) == ("queued", 0, 1, 0, 0)
    until(lambda: not is_alive(pid), "the worker has ended")


@slurm
def test_a_worker_that_slurm_requeues_comes_back_with_its_id(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    assert isinstance(engine, Slurm)
    command = stage.queue["start"]["command"]
    command[command.index("--no-requeue")] = "--requeue"
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    id, pid = stage.until_begun(run)

    [job] = engine.jobs("%i")
    engine.call("scontrol", "requeue", job)

    until(lambda: not is_alive(pid), "the worker has ended")
    assert project.summary(run) == ("queued", 0, 1, 0, 0)
    until(lambda: engine.jobs() == ["PENDING"], "Slurm has it in its queue again")
    engine.call("scontrol", "update", f"JobId={job}", "StartTime=now")  # not in two minutes
    other, _ = stage.until_begun(run, times=2)
    assert other == id
    project.touch("go")
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 2, 1, 0)
    assert len(stage.workers()) == 1


@dask
def test_a_worker_ends_with_its_dask_worker_and_dask_starts_it_again(stage: Stage) -> None:
    project = stage.project
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    _, pid = stage.until_begun(run)

    os.kill(parent_of(pid), signal.SIGKILL)

    _, other = stage.until_begun(run, times=2)
    assert other != pid
    assert not is_alive(pid)
    project.touch("go")
    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 2, 1, 0)
    assert len(stage.workers()) == 1


@dask
def test_a_worker_does_not_need_the_scheduler_of_dask(stage: Stage) -> None:
    project, engine = stage.project, stage.engine
    stage.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    stage.tick()
    stage.until_begun(run)

    engine.stop("scheduler", signal.SIGKILL)
    project.touch("go")

    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    engine.stop("worker", signal.SIGKILL)


@dask
def test_without_tls_no_worker_is_started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    project, engine = stage.project, stage.engine
    (project.folder / "dask.yaml").write_text("scheduler-address: tcp://127.0.0.1:1\n")
    stage.sync(nothing={})
    project.enqueue("nothing")
    monkeypatch.setattr(engine, "environment", {"DASK_CONFIG": str(project.folder / "dask.yaml")})

    stage.tick()

    [failed] = stage.workers()
    assert "encryption required by Dask configuration" in failed.error


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
