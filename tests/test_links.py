"""A file behind a symbolic link, as Capistrano and Kubernetes deploy it: all that executes is of one release."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.database import temporary_database
from support.project import Process, Project, a_project, until
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule.file import absolute
from yamlsched.schedule.include import patterns
from yamlsched.service.host import permit_folder
from yamlsched.sync.files import ScheduleFile

SCHEDULE = """\
version: 1
queues: {{shared: {{mode: async}}}}
defaults: {{max_attempts: 1, backoff: {{policy: fixed, delay: 0s}}}}
jobs:
  version: {{handler: h.version}}
  shared: {{handler: h.shared, queue: shared}}
  waits: {{handler: h.waits}}
  where: {{command: [pwd], output: {{keep: always}}}}
  only_{0}: {{handler: h.version}}
"""
HANDLERS = """\
import os, time

def version():
    return "release {0}"

async def shared():
    return "release {0}"

def waits():
    open(os.environ["TEST_FOLDER"] + "/started", "w").close()
    while not os.path.exists(os.environ["TEST_FOLDER"] + "/go"):
        time.sleep(0.01)
    import late
    return late.version()
"""
JOBS = ("version", "shared", "where")


@dataclass
class Deployment:
    """A project whose file is ``path``; ``layout`` is that of Capistrano, or of a volume of Kubernetes."""

    project: Project
    folder: Path
    layout: str

    @property
    def path(self) -> Path:
        return (
            self.folder
            / ("current" if self.layout == "capistrano" else "volume")
            / "schedules.yaml"
        )

    def release(self, number: int) -> Path:
        return (
            self.folder / ("releases" if self.layout == "capistrano" else "volume") / f"..{number}"
        )

    def deploy(self, number: int, schedule: str = SCHEDULE) -> None:
        """Create a release and switch to it, by one rename."""
        release = self.release(number)
        release.mkdir(parents=True)
        (release / "schedules.yaml").write_text(schedule.format(number))
        (release / "h.py").write_text(HANDLERS.format(number))
        (release / "late.py").write_text(f"def version(): return 'release {number}'\n")
        link = (
            self.folder / "current"
            if self.layout == "capistrano"
            else self.release(number).parent / "..data"
        )
        (self.folder / "new").symlink_to(release)
        (self.folder / "new").rename(link)
        if self.layout == "configmap" and not self.path.is_symlink():
            for name in ("schedules.yaml", "h.py", "late.py"):
                (link.parent / name).symlink_to(f"..data/{name}")

    def start(
        self, verb: str, *words: str, file: str | None = None, cwd: Path | None = None
    ) -> Process:
        self.project.number += 1
        log = self.folder / f"log-{self.project.number}"
        environment = {
            "TEST_FOLDER": str(self.folder),
            "TMPDIR": str(self.folder),
            "PWD": str(cwd or self.folder),
        }
        pid = self.project.fork_server.start(
            argv=[verb, "--file", file or str(self.path), "--dsn", self.project.dsn, *words],
            env=environment,
            cwd=cwd or self.folder,
            stdout=str(self.folder / "out"),
            stderr=str(log),
            before="",
        )
        self.project.pids.append(pid)
        return Process(self.project.fork_server, pid, log)

    def results(self, *jobs: str) -> list[str]:
        """Run jobs, and return what each of them says of its release."""
        runs = [self.project.enqueue(job)[0] for job in jobs]
        return [self.result(run) for run in runs]

    def result(self, run: int) -> str:
        until(lambda: self.project.row(run).finished_at, f"run {run} has ended")
        row = self.project.row(run)
        if row.job_type == "where" and row.status == "succeeded":
            return str(self.project.outputs(run)[0].output.strip())
        return str(row.result or row.last_error)

    def answers(self, number: int) -> list[str]:
        """Return the results of JOBS in a release."""
        return [f"release {number}", f"release {number}", str(self.release(number))]


@pytest.fixture
def deployment(
    server: str, template: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        deployment = Deployment(project, tmp_path, getattr(request, "param", "capistrano"))
        deployment.deploy(1)
        assert deployment.start("sync").wait() == 0
        yield deployment


def stop(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


@pytest.mark.story
@pytest.mark.parametrize(
    "deployment, how",
    [
        ("capistrano", "noticed"),
        ("capistrano", "hangup"),
        ("configmap", "noticed"),
        ("configmap", "same schedule"),
    ],
    indirect=["deployment"],
)
def test_a_loop_runs_the_release_that_a_link_leads_to_though_the_one_before_was_deleted(
    deployment: Deployment, how: str
) -> None:
    # given a loop whose children have executed runs of the first release
    worker = deployment.start("work", "--loop")
    assert deployment.results(*JOBS) == deployment.answers(1)

    # when the link leads to another release, and the first one is deleted
    deployment.deploy(
        2, SCHEDULE.replace("only_{0}", "only_1") if how == "same schedule" else SCHEDULE
    )
    shutil.rmtree(deployment.release(1))
    if how == "hangup":
        worker.signal(signal.SIGHUP)
        until(lambda: "worker.reloading" in worker.text)

    # then the next runs are of the second release: schedule, handlers, and the directory of commands
    assert deployment.results(*JOBS) == deployment.answers(2)
    if how != "same schedule":
        # and what the second one lacks is retired by the next sync that finds the same file
        worker.signal(signal.SIGHUP)
        retired = "select from yamlsched.job_definitions where job_type = 'only_2'"
        until(lambda: deployment.project.db.execute(retired).fetchall())
        assert deployment.results("only_2") == ["release 2"]
    stop(worker)


@pytest.mark.story
@pytest.mark.parametrize(
    "file, folder", [("schedules.yaml", "current"), ("../current/schedules.yaml", "x")]
)
def test_a_relative_path_follows_the_link_too(
    deployment: Deployment, file: str, folder: str
) -> None:
    (deployment.folder / "x").mkdir()
    worker = deployment.start("work", "--loop", file=file, cwd=deployment.folder / folder)
    assert deployment.results(*JOBS) == deployment.answers(1)

    deployment.deploy(2)
    shutil.rmtree(deployment.release(1))

    assert deployment.results(*JOBS) == deployment.answers(2)
    stop(worker)


@pytest.mark.story
def test_a_run_that_executes_during_the_switch_ends_with_the_code_that_it_started_with(
    deployment: Deployment,
) -> None:
    worker = deployment.start("work", "--loop")
    [before] = deployment.project.enqueue("waits")
    until((deployment.folder / "started").exists)

    deployment.deploy(2)
    assert deployment.results(*JOBS) == deployment.answers(2)
    (deployment.folder / "go").touch()

    assert deployment.result(before) == "release 1"
    assert deployment.results("waits") == ["release 2"]
    stop(worker)


@pytest.mark.story
@pytest.mark.parametrize("deployment", ["configmap"], indirect=True)
def test_a_loop_waits_while_the_new_release_has_no_readable_file_and_the_old_one_was_deleted(
    deployment: Deployment,
) -> None:
    worker = deployment.start("work", "--loop")
    assert deployment.results(*JOBS) == deployment.answers(1)

    # an unreadable file: while the first release is there, its jobs run
    deployment.deploy(2, "version: [")
    assert deployment.results(*JOBS) == deployment.answers(1)

    # once it is deleted, they wait, and cost no attempt
    deployment.deploy(3, "version: [")
    shutil.rmtree(deployment.release(1))
    runs = [deployment.project.enqueue(job)[0] for job in JOBS]
    until(lambda: f"file.moved file={deployment.release(3)}" in worker.text)
    deployment.deploy(4)
    worker.signal(signal.SIGHUP)

    assert [deployment.result(run) for run in runs] == deployment.answers(4)
    stop(worker)


@pytest.mark.story
def test_ticks_of_two_releases_share_the_limit_and_the_older_one_claims_no_more(
    deployment: Deployment,
) -> None:
    # given a tick that executes a run of the first release
    [before] = deployment.project.enqueue("waits")
    first = deployment.start("tick", "--concurrency", "1")
    until((deployment.folder / "started").exists)
    [waiting] = deployment.project.enqueue("version")

    # when a tick of the second release has ended meanwhile, it has started nothing
    deployment.deploy(2)
    assert deployment.start("tick", "--concurrency", "1").wait() == 0
    assert deployment.project.row(waiting).status == "queued"

    # and the first one starts nothing more
    (deployment.folder / "go").touch()
    assert first.wait() == 0
    assert "file.moved" in first.text
    assert deployment.result(before) == "release 1"
    assert deployment.project.row(waiting).status == "queued"

    # then the next tick runs the rest with the code of the second release
    assert deployment.start("tick", "--concurrency", "1").wait() == 0
    assert deployment.result(waiting) == "release 2"


def test_an_absolute_path_keeps_links_and_resolves_what_leads_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "releases" / "1" / "app").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/1")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "current")
    real = Path(os.getcwd())

    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    assert absolute(Path("s.yaml")) == tmp_path / "current" / "s.yaml"
    assert absolute(Path("app/../s.yaml")) == real / "s.yaml"
    assert absolute(Path("../s.yaml")) == tmp_path / "releases" / "s.yaml"
    assert absolute(tmp_path / "current" / ".." / "s.yaml") == tmp_path / "releases" / "s.yaml"
    assert absolute(tmp_path / "loop" / "s.yaml") == tmp_path / "loop" / "s.yaml"
    for other in (str(tmp_path), "current", str(tmp_path / "nowhere"), ""):
        monkeypatch.setenv("PWD", other)
        assert absolute(Path("s.yaml")) == real / "s.yaml"


def test_a_deleted_working_directory_hides_no_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deleted").mkdir()
    (tmp_path / "s.yaml").write_text("version: 1\n")
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()

    assert ScheduleFile.read(tmp_path / "s.yaml", None, find_patterns=patterns).path == str(
        tmp_path / "s.yaml"
    )
    with pytest.raises(EnvironmentFailed, match=r"s\.yaml cannot be read: No such file"):
        ScheduleFile.read(Path("s.yaml"), None, find_patterns=patterns)


def test_the_folder_of_lock_files_is_that_of_the_host_and_of_the_path_with_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "current").symlink_to("releases/1")
    before = permit_folder(tmp_path / "current" / "schedules.yaml")

    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("releases/2")

    assert permit_folder(tmp_path / "current" / "schedules.yaml") == before
    assert permit_folder(tmp_path / "releases" / "2" / "schedules.yaml") != before
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert permit_folder(tmp_path / "current" / "schedules.yaml") != before
