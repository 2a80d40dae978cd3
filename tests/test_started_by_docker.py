"""The docker example of docs/started-workers.md, by its text, with a program that behaves as docker's command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engines import queue_of
from support.project import TESTS, Project, a_project, until

pytestmark = pytest.mark.story
OVERDUE = "run_at = now() - interval '1 minute', created_at = now() - interval '1 minute'"
JOB = {"queue": "gpu", "backoff": {"policy": "fixed", "delay": "1s", "max_delay": "1s"}}


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        queue = queue_of("docker")
        command = queue["start"]["command"]
        file = tmp_path / "yamlsched.env"
        values = {"YAMLSCHED_DSN": own_dsn, "TEST_FOLDER": tmp_path, "PYTHONPATH": TESTS}
        file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        words = [word.replace("/etc/yamlsched.env", str(file)) for word in command]
        assert words != command
        queue["start"]["command"] = [*words, "--idle-exit", "1s"]
        project.queues = {"gpu": queue}
        (tmp_path / "docker").symlink_to(TESTS / "support" / "fake_docker.py")
        image = {"folder": str(tmp_path), "entrypoint": [sys.executable, "-m", "yamlsched"]}
        (tmp_path / "image.json").write_text(json.dumps(image))
        yield project


def tick(project: Project) -> None:
    project.db.execute(f"update yamlsched.job_runs set {OVERDUE}".encode())
    path = f"{project.folder}{os.pathsep}{os.environ['PATH']}"
    process = project.start("tick", PATH=path, FAKE_DOCKER=str(project.folder))
    assert process.wait() == 0, process.text


def workers(project: Project) -> list[Any]:
    return project.db.execute("select * from yamlsched.workers").fetchall()


def test_the_example_starts_a_worker_in_a_container_that_has_its_id(project: Project) -> None:
    project.sync(nothing=JOB)
    [run] = project.enqueue("nothing")

    tick(project)

    row = project.until_status(run, "succeeded")
    [worker] = workers(project)
    assert row.locked_by.startswith(f"{worker.id}:")
    assert (project.folder / f"container-{worker.id}").exists()
    until(lambda: workers(project)[0].ended_at, "the worker has left")
    assert (workers(project)[0].runs, workers(project)[0].error) == (1, None)


def test_a_container_that_docker_does_not_start_is_a_failed_start(project: Project) -> None:
    project.sync(nothing=JOB)
    [run] = project.enqueue("nothing")
    (project.folder / "image.json").unlink()

    tick(project)

    [worker] = workers(project)
    assert worker.error.startswith("exit code 125\ndocker: Cannot connect to the Docker daemon")
    assert project.summary(run) == ("queued", 0, 0, 0, 0)


@pytest.mark.skipif(not shutil.which("docker"), reason="docker is not installed here")
def test_the_client_of_docker_knows_the_options_of_the_example() -> None:
    known = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    options = [word for word in queue_of("docker")["start"]["command"] if word.startswith("--")]
    options = options[: options.index("--queue")] if "--queue" in options else options

    assert len(options) >= 5
    assert [word for word in options if f"{word.partition('=')[0]} " not in known] == []
