"""``yamlsched init``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.test_cli import yamlsched


def test_init_makes_a_project_that_validates_and_ticks(tmp_path: Path, own_dsn: str) -> None:
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


def test_the_crontab_line_runs_from_an_empty_environment(tmp_path: Path, own_dsn: str) -> None:
    folder = tmp_path / "it's 100% mine"
    folder.mkdir()
    lines = yamlsched("init", cwd=folder).stdout.splitlines()
    [line] = [line.strip() for line in lines if "* * * * *" in line]
    command = line.removeprefix("* * * * * ").replace(r"\%", "%").replace("| logger -t yamlsched", "")

    done = subprocess.run(
        ["/bin/sh", "-c", command], env={"YAMLSCHED_DSN": own_dsn}, cwd="/", capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout
    assert "sync.applied" in done.stdout
