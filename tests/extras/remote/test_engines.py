"""The examples of docs/executors.md, as they are written there, against programs that behave as the real ones do."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import engines
from support.database import temporary_database
from support.project import Process, Project, a_project, is_alive, until
from yamlsched.schedule.load import load

pytestmark = pytest.mark.story

PAGE = Path(__file__).parents[3] / "docs" / "executors.md"
ROOTS = ("/srv/app", "/etc/app")
HANDLERS = """
import os, time
def score(run, until=""):
    while until and not os.path.exists(until):
        time.sleep(0.01)
    return {"pid": os.getpid(), "shell": os.environ.get("YAMLSCHED_DSN", "")[:4]}
"""


def blocks(kind: str) -> list[str]:
    return re.findall(f"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def documented() -> dict[str, Any]:
    """Return the executors of type command of all examples of the page, by name."""
    files = [yaml.safe_load(block) for block in blocks("yaml") if block.startswith("version: 1")]
    found = [one for file in files for one in file["executors"].items()]
    return {name: executor for name, executor in found if executor["type"] == "command"}


EXAMPLES = documented()


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project
        for pid in started_pids(project):
            if is_alive(pid):
                os.kill(pid, 9)


def state(project: Project) -> Path:
    return project.folder / "engines"


def started_pids(project: Project) -> list[int]:
    return [int(path.read_text()) for path in state(project).glob("job-*/pid")]


def prepare(project: Project, name: str) -> None:
    """Make what the page says: scripts, secrets, the role, and the project that uses the executor ``name``.

    Only the folders are others, because those of the page belong to the machine.
    """
    for root in (*ROOTS, "/tmp"):
        (project.folder / root[1:]).mkdir(parents=True)
    replaced = lambda text: re.sub(r"/(srv/app|etc/app|tmp)\b", rf"{project.folder}/\1", text)  # noqa: E731
    for block in blocks("sh"):
        if script := re.match("#!/bin/sh\n# (/srv/app/[a-z-]+)\n", block):
            path = Path(replaced(script[1]))
            path.write_text(replaced(block))
            path.chmod(0o755)
    (app, secrets) = (project.folder / root[1:] for root in ROOTS)
    (app / ".venv").mkdir()
    (app / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (app / "ml.py").write_text(HANDLERS)
    (secrets / "secrets.env").write_text(f"YAMLSCHED_DSN='{project.dsn}'\n")
    (secrets / "docker.env").write_text(f"YAMLSCHED_DSN={project.dsn}\n")
    state(project).mkdir()
    (state(project) / "secret-yamlsched").write_text(json.dumps({"YAMLSCHED_DSN": project.dsn}))
    (state(project) / "image").write_text(
        json.dumps({"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    )
    (state(project) / "role.yaml").write_text(
        next(one for one in blocks("yaml") if "kind: Role" in one)
    )
    for program in engines.PROGRAMS:
        shutil.copy(engines.__file__, state(project) / program)
        (state(project) / program).chmod(0o755)
    executor = json.loads(replaced(json.dumps(EXAMPLES[name])))
    project.executors = {name: executor}
    project.sync(score={"executor": name, "handler": "ml.score", "max_attempts": 1, "lease": "20s"})


def start(project: Project, *words: str) -> Process:
    path = f"{state(project)}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return project.start(*words, "--skip-handler-checks", PATH=path)


def calls(project: Project, program: str) -> list[list[str]]:
    path = state(project) / "calls"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [words[1:] for words in lines if words[0] == program]


def finish(project: Project, run: int) -> Any:
    until(lambda: start(project, "work").wait() in (0, 1) and project.row(run).status != "running")
    return project.row(run)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page_executes_a_run(project: Project, name: str) -> None:
    prepare(project, name)
    [run] = project.enqueue("score")

    worker = start(project, "work")

    assert worker.wait() == 0, worker.text
    row = finish(project, run)
    assert (row.status, row.attempts) == ("succeeded", 1), (worker.text, row.last_error)
    assert row.result["shell"]
    assert project.dsn not in (state(project) / "calls").read_text()


HANDED_OVER = [name for name in EXAMPLES if "withdraw" in EXAMPLES[name]]


@pytest.mark.parametrize("name", HANDED_OVER)
def test_what_waits_in_the_queue_of_an_engine_is_taken_out_of_it_by_the_program_of_withdraw(
    project: Project, name: str
) -> None:
    prepare(project, name)
    (state(project) / "held").touch()
    project.executors[name]["begin_within"] = "2s"
    project.sync(score=project.jobs["score"])
    [first] = project.enqueue("score")
    program = EXAMPLES[name]["withdraw"][0]

    # given a queue that is longer than begin_within
    worker = start(project, "work", "--max-runs", "1")
    assert worker.wait() == 0, worker.text
    assert (project.row(first).status, project.row(first).attempts) == ("queued", 0)
    assert 'why="it had not begun after 2s"' in worker.text
    assert len(calls(project, program)) >= 1
    assert "executor.withdraw_failed" not in worker.text

    # when another one is cancelled, and a third is left by a shutdown
    project.executors[name]["begin_within"] = "1h"
    project.sync(score=project.jobs["score"])
    project.start("cancel", str(first)).wait()
    [second], [third] = project.enqueue("score"), project.enqueue("score")
    submitted = len(list(state(project).glob("job-*")))
    worker = start(project, "work")
    until(lambda: len(list(state(project).glob("job-*"))) == submitted + 2)
    assert project.start("cancel", str(second)).wait() == 0
    until(lambda: len(list(state(project).glob("job-*/cancelled"))) == submitted + 1)
    assert worker.is_alive
    worker.signal(15)
    assert worker.wait() == 0, worker.text

    # then nothing of it is left in the queue
    until(lambda: len(list(state(project).glob("job-*/ended"))) == submitted + 2)
    assert not (state(project) / "started").exists()
    assert (project.row(third).status, project.row(third).attempts) == ("queued", 0)
    (state(project) / "held").unlink()
    until(lambda: start(project, "work").wait() == 0 and project.row(third).status == "succeeded")
    assert project.row(second).status == "cancelled"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_attempt_of_an_example_goes_on_when_its_worker_has_gone(
    project: Project, name: str
) -> None:
    prepare(project, name)
    go = project.folder / "end"
    [run] = project.enqueue("score", {"until": str(go)})
    worker = start(project, "work")
    assert worker.wait() == 0, worker.text
    assert "attempt.begun" in worker.text
    go.touch()

    assert finish(project, run).status == "succeeded"


def test_a_program_of_withdraw_that_fails_or_hangs_is_reported_and_costs_nothing(
    project: Project,
) -> None:
    prepare(project, "slurm")
    (state(project) / "held").touch()
    soon = "import yamlsched.extras.remote.gateway as gateway; gateway.WITHDRAW_SECONDS = 0.5"
    for script, why in (
        ("echo no such job; exit 3", "exit code 3: no such job"),
        ("sleep 60", "no end within"),
    ):
        project.executors["slurm"] |= {"begin_within": "1s", "withdraw": ["/bin/sh", "-c", script]}
        project.sync(score=project.jobs["score"])
        [run] = project.enqueue("score")
        worker = project.start(
            *("work", "--max-runs", "1", "--skip-handler-checks"),
            before=soon,
            PATH=f"{state(project)}:{Path(sys.executable).parent}:/usr/bin:/bin",
        )
        assert worker.wait() == 0, worker.text
        assert "executor.withdraw_failed executor=slurm" in worker.text
        assert why in worker.text
        assert (project.row(run).status, project.row(run).attempts) == ("queued", 0)
        project.start("cancel", str(run)).wait()
    for path in state(project).glob("job-*"):
        (path / "cancelled").touch()


def test_the_schedules_of_the_page_are_valid() -> None:
    for block in blocks("yaml"):
        if block.startswith("version: 1"):
            loaded = load(block.encode(), "page.yaml", None)
            assert [one.message for one in loaded.diagnostics if "no such" not in one.message] == []
