"""`tick --cron`: what cron mails of a tick, and when. cron reads its child's output until nobody holds it any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import yamlsched
from support.project import is_alive, until

pytestmark = pytest.mark.story

JOBS: dict[str, Any] = {
    "good": {"command": ["/bin/echo", "fine"]},
    "bad": {"command": ["/bin/false"], "max_attempts": 1},
    "waits": {
        "command": ["/bin/sh", "-c", "until [ -e go ]; do sleep 0.05; done"],
        "max_attempts": 1,
    },
    "dies_later": {
        "command": ["/bin/sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 7"],
        "max_attempts": 1,
    },
    "leaves": {"command": ["/bin/sh", "-c", "sleep 600 & echo $! > left"]},
}


@pytest.fixture
def folder(own_dsn: str, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "schedules.yaml").write_text(json.dumps({"version": 1, "jobs": JOBS}))
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    (tmp_path / "go").touch()


def start(folder: Path, dsn: str, *words: str) -> subprocess.Popen[str]:
    """Start a tick as cron does; its output ends when nobody holds it any more."""
    environment = {"PATH": "/usr/bin:/bin", "YAMLSCHED_DSN": dsn, "TMPDIR": str(folder / "tmp")}
    command = [sys.executable, "-m", "yamlsched", *words, "--file", str(folder / "schedules.yaml")]
    return subprocess.Popen(
        command,
        cwd="/",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def tick(folder: Path, dsn: str, *options: str) -> tuple[int, str]:
    process = start(folder, dsn, "tick", "--cron", *options)
    mail, _ = process.communicate(timeout=120)
    return process.returncode, mail


def enqueue(folder: Path, dsn: str, *jobs: str) -> None:
    for job in jobs:
        assert yamlsched("enqueue", job, "--dsn", dsn, cwd=folder).returncode == 0


def statuses(dsn: str) -> dict[str, str]:
    with psycopg.connect(dsn, autocommit=True) as db:
        return dict(db.execute("select job_type, status from yamlsched.job_runs").fetchall())


@pytest.mark.parametrize("options", [(), ("--log-format", "json")])
def test_a_tick_in_which_all_is_well_prints_nothing(
    folder: Path, own_dsn: str, options: tuple[str, ...]
) -> None:
    assert tick(folder, own_dsn, *options) == (0, "")
    enqueue(folder, own_dsn, "good")
    assert tick(folder, own_dsn, *options) == (0, "")
    assert statuses(own_dsn) == {"good": "succeeded"}


@pytest.mark.parametrize("options", [(), ("--log-format", "json")])
def test_a_death_is_printed_although_another_run_executes_and_a_later_one_by_the_next_tick(
    folder: Path, own_dsn: str, options: tuple[str, ...]
) -> None:
    # given a tick with a run that dies at once, one that takes long, and one that dies after a while
    assert tick(folder, own_dsn) == (0, "")
    enqueue(folder, own_dsn, "waits", "dies_later", "bad")

    # then it has ended for cron, with the death first, while the others execute
    code, mail = tick(folder, own_dsn, *options)
    assert code == 1
    first, second, *_ = mail.splitlines()
    assert first == "yamlsched tick: a run died; others are still running"
    assert "run.dead" in second
    assert "bad" in second
    assert statuses(own_dsn) == {"waits": "running", "dies_later": "running", "bad": "dead"}

    # and what dies later is printed once, by the next tick
    (folder / "go").touch()
    until(lambda: statuses(own_dsn) == {"waits": "succeeded", "dies_later": "dead", "bad": "dead"})
    until(lambda: list(folder.glob("tmp/**/cron-unsent")))
    code, mail = tick(folder, own_dsn)
    assert code == 1
    assert mail.startswith("yamlsched tick: all is well now\n\nof earlier ticks:\n")
    assert mail.count("run.dead") == 1
    assert "dies_later" in mail
    assert tick(folder, own_dsn) == (0, "")


def test_the_first_lines_of_a_failing_tick_are_its_exit_code_and_its_errors(
    folder: Path, own_dsn: str
) -> None:
    assert tick(folder, own_dsn) == (0, "")
    enqueue(folder, own_dsn, "good", "bad")
    code, mail = tick(folder, own_dsn)
    assert code == 1
    first, second, *_ = mail.splitlines()
    assert first == "yamlsched tick: exit code 1"
    assert " ERROR   run.dead job=bad " in second

    (folder / "schedules.yaml").write_text("version: 1\njobs: {a: {hanlder: x}}\n")
    code, mail = tick(folder, own_dsn)
    assert (code, mail.splitlines()[0]) == (1, "yamlsched tick: exit code 1")
    assert 'Did you mean "handler"?' in mail
    assert tick(folder, "host=/nowhere")[0] == 3


def test_a_process_that_a_run_has_left_behind_keeps_no_mail_waiting(
    folder: Path, own_dsn: str
) -> None:
    assert tick(folder, own_dsn) == (0, "")
    enqueue(folder, own_dsn, "leaves")
    assert tick(folder, own_dsn) == (0, "")


def test_a_signal_stops_the_tick_and_a_tick_that_is_killed_is_reported(
    folder: Path, own_dsn: str
) -> None:
    assert tick(folder, own_dsn) == (0, "")
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, 137)):
        enqueue(folder, own_dsn, "waits")
        process = start(folder, own_dsn, "tick", "--cron", "--grace", "1s")
        until(lambda: "running" in statuses(own_dsn).values())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid if number == signal.SIGTERM else int(children[0]), number)
        mail, _ = process.communicate(timeout=60)
        assert (process.returncode, mail.splitlines()[:1]) == (
            code,
            ["yamlsched tick: exit code 137"] if code else [],
        )
        assert not any(is_alive(int(child)) for child in children)
        with psycopg.connect(own_dsn, autocommit=True) as db:
            db.execute("delete from yamlsched.job_runs")
