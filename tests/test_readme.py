"""Runs the commands of the README in a temporary folder, on the embedded database."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import recording
from support import guides
from support.schedules import sync_by_hand
from yamlsched import db as store
from yamlsched.act.pause import pause
from yamlsched.extras import embedded
from yamlsched.schedule.include import patterns
from yamlsched.sync.files import ScheduleFile

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PG_DUMP = """#!/bin/sh
test ! -e full || { echo 'pg_dump: error: could not write: No space left on device' >&2; exit 1; }
"""


def shown() -> list[str]:
    """Return the commands of the README's block that is marked `run`, without comments."""
    block = re.search(r"<!-- run -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert block
    return [line.split("#")[0].strip() for line in block[1].splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    shutil.copy(ROOT / "schedules.yaml", tmp_path)
    shutil.copytree(
        ROOT / "handlers", tmp_path / "handlers", ignore=shutil.ignore_patterns("__pycache__")
    )
    yield tmp_path
    embedded.discard(tmp_path / "schedules.yaml")


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_the_commands_of_the_readme_work_as_described(project: Path) -> None:
    outputs = {}
    for command in shown():
        done = run(command, project)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        outputs[command] = done.stdout

    assert "no errors" in outputs["yamlsched validate"]
    assert outputs["yamlsched tick"] == ""
    assert re.search(r"weekly_activity .*succeeded", outputs["yamlsched runs"])
    assert re.search(r"send_weekly_report .*succeeded", outputs["yamlsched runs"])
    assert "cleanup_nightly" in outputs["yamlsched status"]
    assert "refresh_cache:" in outputs["yamlsched next"]
    assert len(list((project / "var" / "mail").glob("new/*"))) == 8


@pytest.mark.slow
def test_make_run_executes_the_example_and_leaves_no_process_and_no_untracked_file(
    project: Path,
) -> None:
    shutil.copytree(ROOT / "docs", project / "docs")
    shutil.copy(ROOT / ".gitignore", project)
    subprocess.run("git init -q . && git add -A", shell=True, cwd=project, check=True)

    done = run("sh docs/demo.sh yamlsched", project)

    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.search(r"fetch_rates .*succeeded +3/5", done.stdout)
    assert re.search(r"cleanup_nightly .*succeeded +1/10", done.stdout)
    assert "    yamlsched web " in done.stdout.splitlines()[-1]
    assert not embedded.status(project / "schedules.yaml").running
    status = subprocess.run(
        "git status --porcelain | grep -v '^A '", shell=True, cwd=project, capture_output=True
    )
    assert status.stdout == b""


@pytest.fixture
def shown_file(tmp_path: Path) -> Path:
    """The file of the README, with the handlers."""
    block = re.search(r"```yaml\n(# schedules.yaml\n.*?)```", README, re.DOTALL)
    assert block
    (tmp_path / "schedules.yaml").write_text(block[1])
    shutil.copytree(
        ROOT / "handlers", tmp_path / "handlers", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "schedules.yaml"


def test_the_recording_shows_what_the_commands_print(shown_file: Path, own_dsn: str) -> None:
    # given a file that was applied yesterday, a paused job, and a pg_dump that finds the disk full
    folder = shown_file.parent
    (folder / "pg_dump").write_text(PG_DUMP)
    (folder / "pg_dump").chmod(0o755)
    (folder / "full").touch()
    author = {"GIT_AUTHOR_NAME": "Anna", "GIT_COMMITTER_NAME": "Anna", "EMAIL": "anna@example.com"}
    git = "git init -q && git add schedules.yaml && git commit -qm 'Back up at night'"
    subprocess.run(git, shell=True, cwd=folder, env={**os.environ, **author}, check=True)
    with store.connect(own_dsn) as connection:
        [[then]] = connection.execute("select clock_timestamp() - interval '1 day'").fetchall()
        sync_by_hand(connection, ScheduleFile.read(shown_file, None, find_patterns=patterns), then)
        paused = "select id from yamlsched.job_definitions where job_type = 'cleanup_nightly'"
        [[job]] = connection.execute(paused).fetchall()
        pause(connection, "default", [job], "anna", reason="the tables move", now=then)

    # when the commands of the page are executed
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "YAMLSCHED_DSN": own_dsn}
    wrong = guides.problems("recording.md", folder, environment, {})

    # then they print what it shows
    assert not wrong, "\n\n".join(wrong)


def test_the_picture_is_that_of_the_recording_and_the_readme_shows_a_part_of_it() -> None:
    page = recording.PAGE.read_text("utf-8")
    [block] = re.findall(r"```console\n(.*?)```", README, re.DOTALL)

    assert recording.PICTURE.read_text("utf-8") == recording.draw(recording.commands())
    assert block in page


def test_the_example_file_gets_no_advice(shown_file: Path) -> None:
    done = run("yamlsched validate --strict", shown_file.parent)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
