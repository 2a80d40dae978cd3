"""``yamlsched init``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import yamlsched
from yamlsched import __version__
from yamlsched.extras.scaffold import cli as init

pytestmark = pytest.mark.story

ROOT = Path(__file__).parents[3]


def test_init_creates_a_project_that_validates_and_ticks(tmp_path: Path, own_dsn: str) -> None:
    done = yamlsched("init", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "written  schedules.yaml" in done.stdout

    assert yamlsched("validate", "--strict", cwd=tmp_path).returncode == 0
    assert yamlsched("tick", "--dsn", own_dsn, cwd=tmp_path).returncode == 0
    assert yamlsched("enqueue", "say_hello", "--dsn", own_dsn, cwd=tmp_path).returncode == 0
    tick = yamlsched("tick", "--dsn", own_dsn, cwd=tmp_path)
    assert tick.returncode == 0
    assert "hello, world: attempt 1 of run" in tick.stderr
    runs = json.loads(yamlsched("runs", "--format", "json", "--dsn", own_dsn, cwd=tmp_path).stdout)
    assert [run["status"] for run in runs["runs"]] == ["succeeded"]


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text("mine")
    done = yamlsched("init", cwd=tmp_path)
    assert "kept     schedules.yaml" in done.stdout
    assert (tmp_path / "schedules.yaml").read_text() == "mine"


def test_init_keeps_a_schedule_and_adds_no_handler_beside_it(tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text("mine")
    yamlsched("init", cwd=tmp_path)
    assert not (tmp_path / "handlers").exists()


def test_an_existing_module_named_handlers_is_still_imported(tmp_path: Path, own_dsn: str) -> None:
    # given a project with a module that a package of the same name would hide
    (tmp_path / "handlers.py").write_text("def mine(): ...\n")

    done = yamlsched("init", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "handlers").exists()
    assert yamlsched("validate", "--strict", "--import", cwd=tmp_path).returncode == 0
    with (tmp_path / "schedules.yaml").open("a") as file:
        file.write("  mine: {handler: handlers.mine}\n")
    assert yamlsched("validate", "--strict", "--import", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "existing, added", [([], ["__init__.py", "hello.py"]), (["mine.py"], ["hello.py"])]
)
def test_a_namespace_package_does_not_become_a_regular_one(
    tmp_path: Path, existing: list[str], added: list[str]
) -> None:
    (tmp_path / "handlers").mkdir()
    for name in existing:
        (tmp_path / "handlers" / name).touch()
    yamlsched("init", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "handlers").iterdir()) == sorted(
        [*existing, *added]
    )


# -- the crontab line


def crontab_line(folder: Path, *arguments: str, **environment: str) -> str:
    """Return the command of the printed crontab line, as cron passes it to the shell."""
    lines = yamlsched(*arguments, "init", cwd=folder, **environment).stdout.splitlines()
    [line] = [line.strip() for line in lines if "* * * * *" in line]
    assert len(line) < 999
    return line.removeprefix("* * * * * ").replace(r"\%", "%")


def run_by_cron(
    command: str, dsn: str, path: str = "/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
    """Run a command with cron's shell and environment, and even without HOME."""
    words = ["/usr/bin/env", "-i", f"PATH={path}", f"YAMLSCHED_DSN={dsn}", "/bin/sh", "-c", command]
    return subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A project in a folder with special characters, with one job that always dies."""
    folder = tmp_path / "it's 100% mine"
    folder.mkdir()
    (folder / "failing.py").write_text("def run(): raise RuntimeError(r'50% \\n done')\n")
    (folder / "schedules.yaml").write_text(
        "version: 1\njobs: {bad: {handler: failing.run, max_attempts: 1}}\n"
    )
    return folder


def test_the_crontab_line_runs_in_crons_environment(failing: Path, own_dsn: str) -> None:
    command = crontab_line(failing)

    first = run_by_cron(command, own_dsn)
    status = yamlsched("status", "--format", "json", "--dsn", own_dsn, cwd=failing)

    # a tick that applied the file prints nothing, with and without a syslog
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    assert json.loads(status.stdout)["file_in_use"]["applied_by"].endswith(
        f":{failing}/schedules.yaml"
    )


def test_the_crontab_line_keeps_the_exit_code_and_lets_cron_mail_only_a_failure(
    failing: Path, own_dsn: str
) -> None:
    command = crontab_line(failing)

    # when a tick succeeds, and a later one has a dead run
    fine = run_by_cron(command, own_dsn)
    assert yamlsched("enqueue", "bad", "--dsn", own_dsn, cwd=failing).returncode == 0
    dead = run_by_cron(command, own_dsn)

    # then only the failure prints, and it exits with the code of tick
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")
    assert (dead.returncode, dead.stderr) == (1, "")
    assert dead.stdout.startswith("yamlsched tick: exit code 1\n")
    assert "run.dead" in dead.stdout
    assert r"50% \\n done" in dead.stdout


def test_the_crontab_line_reports_a_folder_that_is_gone(failing: Path, own_dsn: str) -> None:
    command = crontab_line(failing)
    failing.rename(failing.with_name("moved"))

    gone = run_by_cron(command, own_dsn)

    assert gone.returncode == 3
    assert "it's 100% mine" in gone.stdout
    assert gone.stdout.startswith("yamlsched tick: exit code 3\n")


def test_the_crontab_line_works_in_any_folder_without_a_locale(
    tmp_path: Path, own_dsn: str
) -> None:
    folder = tmp_path / 'größe € 日本 a"b$(c)`d`'
    folder.mkdir()
    command = crontab_line(folder)
    assert run_by_cron(command, own_dsn).returncode == 0
    assert run_by_cron(command, "postgresql:///nowhere?host=/nowhere").returncode == 3


def test_the_crontab_line_contains_the_environment(tmp_path: Path, own_dsn: str) -> None:
    command = crontab_line(tmp_path, YAMLSCHED_ENV="production")
    assert crontab_line(tmp_path, "--env", "production") == command
    with (tmp_path / "schedules.yaml").open("a") as file:
        file.write("environments: {production: {}}\n")

    assert run_by_cron(command, own_dsn).returncode == 0

    plan = json.loads(yamlsched("plan", "--dsn", own_dsn, "--format", "json", cwd=tmp_path).stdout)
    assert plan["in_use"]["environment"] == "production"


# -- the CI step


def git(folder: Path, *arguments: str) -> None:
    config = [
        "-c",
        "user.name=ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    subprocess.run(["git", *config, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("place", [".", "services/it's [a] dir"])
def test_the_workflow_passes_in_the_pull_request_that_adds_yamlsched(
    tmp_path: Path, place: str
) -> None:
    # given a repository whose main branch does not use yamlsched
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "one")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "main")
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)

    # when the files of init are committed
    done = yamlsched("init", cwd=folder)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "two")

    # then the workflow is in the folder that GitHub reads, watches the schedule, and has read permissions only
    [workflow] = (tmp_path / ".github" / "workflows").iterdir()
    assert os.path.relpath(workflow, folder) in done.stdout
    written = yaml.safe_load(workflow.read_text())
    paths = [re.sub(r"\\(.)", r"\1", path) for path in written[True]["pull_request"]["paths"]]
    assert Path(paths[0]) == Path(place) / "schedules.yaml"
    assert Path(paths[1]) == Path(place) / "**.yaml"  # also what it includes
    assert Path(paths[2]) == Path(place) / "**.py"
    assert tmp_path / paths[3] == workflow
    assert written["permissions"] == {"contents": "read"}

    # and its steps pass in the repository's root
    steps = [step["run"] for step in written["jobs"]["validate"]["steps"] if "run" in step]
    summary = tmp_path / "summary.md"
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": programs,
        "GITHUB_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    for step in steps[1:]:
        ran = subprocess.run(
            ["bash", "-e", "-c", step],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran
    assert "say_hello" in summary.read_text()
    assert "2 jobs added" in summary.read_text()


def test_a_pull_request_does_not_choose_the_wheel_that_reviews_it(tmp_path: Path) -> None:
    # given a base with a wheel, and a pull request that replaces it
    wheel = tmp_path / "vendor" / "yamlsched-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_text("of the base")
    git(tmp_path, "init")
    yamlsched("init", cwd=tmp_path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "main")
    wheel.write_text("of the pull request")
    git(tmp_path, "commit", "-am", "two")

    # when the workflow installs yamlsched
    [workflow] = (tmp_path / ".github" / "workflows").iterdir()
    steps = yaml.safe_load(workflow.read_text())["jobs"]["validate"]["steps"]
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "pip").write_text('#!/bin/sh\ncat "$2"\n')
    (programs / "pip").chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_BASE_REF": "main",
        "RUNNER_TEMP": str(tmp_path / "programs"),
    }
    [install] = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    ran = subprocess.run(
        ["bash", "-e", "-c", install], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    # then it is the wheel of the base
    assert (ran.returncode, ran.stdout) == (0, "of the base")


def test_the_name_of_a_folder_is_no_expression_of_the_workflow(tmp_path: Path) -> None:
    git(tmp_path, "init")
    folder = tmp_path / "x ${{ github.token }}"
    folder.mkdir()
    yamlsched("init", cwd=folder)

    [workflow] = (tmp_path / ".github" / "workflows").iterdir()
    steps = yaml.safe_load(workflow.read_text())["jobs"]["validate"]["steps"]

    naming = [step["run"] for step in steps if "github.token" in step.get("run", "")]
    assert len(naming) == 2
    assert all("${{" not in step.replace("${{ '${{' }}", "") for step in naming)


def test_each_service_of_a_repository_has_its_own_workflow(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for place in ("a/one", "a/two"):
        (tmp_path / place).mkdir(parents=True)
        yamlsched("init", cwd=tmp_path / place)

    names = sorted(path.name for path in (tmp_path / ".github/workflows").iterdir())

    assert names == ["a-one-schedules.yml", "a-two-schedules.yml"]


@pytest.mark.parametrize(
    "source, installed, command",
    [
        (None, f"yamlsched=={__version__}", ""),
        (
            {"url": "https://example.org/y.git", "vcs_info": {"vcs": "git", "commit_id": "4f1c"}},
            "yamlsched @ git+https://example.org/y.git@4f1c",
            "",
        ),
        (
            {"url": "https://example.org/y.whl", "archive_info": {}},
            "yamlsched @ https://example.org/y.whl",
            "",
        ),
        (
            {"url": "file:///a%20b/y.whl", "archive_info": {}},
            init.WHEEL,
            "mkdir -p /r/vendor && cp '/a b/y.whl' /r/vendor",
        ),
        ({"url": "file:///src/y", "dir_info": {}}, init.WHEEL, "/src/y"),
    ],
)
def test_ci_installs_what_is_installed_here(source: Any, installed: str, command: str) -> None:
    assert init._requirement(source) == installed
    shown = init._wheel_command(source, Path("/r"))
    assert shown.endswith(command)
    assert bool(shown) is bool(command)


def test_the_hook_does_not_change_workflows(tmp_path: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    git(tmp_path, "init")
    yamlsched("init", cwd=tmp_path)

    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.y*ml")]

    assert ".github/workflows/schedules.yml" in written
    assert [path for path in written if re.search(hook["files"], path)] == ["schedules.yaml"]
    for path in ("a/schedules.yml", "my.github/schedules.yaml"):
        assert re.search(hook["files"], path)
    for path in ("a/.github/workflows/schedules.yml", "schedules.yaml.orig", "a/my-schedules.yaml"):
        assert not re.search(hook["files"], path)
