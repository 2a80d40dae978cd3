"""End-to-end tests with real files, processes and a database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import yamlsched

HANDLERS = """
from pathlib import Path

def note(name):
    with Path(__file__).with_name("notes.txt").open("a") as notes:
        notes.write(name + "\\n")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(HANDLERS)
    return tmp_path


def write(project: Path, jobs: str) -> None:
    (project / "schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")


def job(name: str, cron: str | None = None, more: str = "") -> str:
    when = f'    cron: "{cron}"\n' if cron else ""
    return f"  {name}:\n    handler: work.note\n    payload: {{name: {name}}}\n{when}{more}"


def notes(project: Path) -> list[str]:
    path = project / "notes.txt"
    return path.read_text().split() if path.exists() else []


def test_an_invalid_file_changes_nothing_and_stops_only_the_invalid_job(
    project: Path, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    # given an applied file with two jobs, each with a run
    write(project, job("good", "0 0 1 1 *") + job("bad", "0 0 1 1 *"))
    assert yamlsched("tick", "--dsn", own_dsn, cwd=project).returncode == 0
    for name in ("good", "bad"):
        assert yamlsched("enqueue", name, "--dsn", own_dsn, cwd=project).returncode == 0
    db = db_of(own_dsn)
    before = db.execute("select * from yamlsched.job_definitions order by id").fetchall()

    # when an edit changes one job and breaks another
    write(project, job("good", "0 0 2 1 *") + job("bad", "61 0 1 1 *"))
    tick = yamlsched("tick", "--dsn", own_dsn, cwd=project)

    # then the tick reports it and exits 1, no definition has changed, and the run of the valid job is executed
    assert tick.returncode == 1
    assert "schedules.yaml:10:" in tick.stderr
    assert "minute 61 is not in 0-59" in tick.stderr
    assert db.execute("select * from yamlsched.job_definitions order by id").fetchall() == before
    statuses = db.execute("select job_type, status from yamlsched.job_runs order by id").fetchall()
    assert statuses == [("good", "succeeded"), ("bad", "queued")]
    assert notes(project) == ["good"]

    # and so does each tick until the file is fixed
    assert yamlsched("tick", "--dsn", own_dsn, cwd=project).returncode == 1
    write(project, job("good", "0 0 2 1 *") + job("bad", "0 0 1 1 *"))
    assert yamlsched("tick", "--dsn", own_dsn, cwd=project).returncode == 0
    assert notes(project) == ["good", "bad"]


def test_a_job_that_was_due_during_downtime_runs_once_and_reports_its_delay(
    project: Path, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    # given a job of every minute that was applied two hours ago, and no tick since
    write(project, job("minutely", "* * * * *"))
    assert yamlsched("sync", "--dsn", own_dsn, cwd=project).returncode == 0
    db = db_of(own_dsn)
    db.execute(
        "update yamlsched.job_definitions set effective_from = effective_from - interval '2 hours', "
        "next_slot_at = next_slot_at - interval '2 hours'"
    )

    # when the next tick comes
    tick = yamlsched("tick", "--dsn", own_dsn, cwd=project)

    # then the latest slot has a run, and the others are one gap
    assert tick.returncode == 0
    assert notes(project) == ["minutely"]
    [gap] = db.execute("select slots, reason from yamlsched.skipped_slots").fetchall()
    assert gap.reason == "superseded"
    assert gap.slots in (119, 120)


def test_a_dead_run_is_reported_by_the_exit_code_and_by_its_hook(
    project: Path, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    (project / "fails.py").write_text("def run():\n    raise OSError('no route to host')\n")
    (project / "work.py").write_text(
        HANDLERS + "\ndef page(run):\n    dead = run.trigger\n"
        "    note(f'{dead.job_type}:{dead.attempt}:{dead.error}'.replace(' ', '_'))\n"
    )
    write(
        project,
        "  fragile:\n    handler: fails.run\n    max_attempts: 1\n    on_dead: [page]\n"
        "  page: {handler: work.page}\n",
    )
    assert yamlsched("sync", "--dsn", own_dsn, cwd=project).returncode == 0
    assert yamlsched("enqueue", "fragile", "--dsn", own_dsn, cwd=project).returncode == 0

    tick = yamlsched("tick", "--dsn", own_dsn, cwd=project)

    assert tick.returncode == 1
    assert 'run.dead job=fragile run=1 attempt=1/1 error="OSError: no route to host"' in tick.stderr
    assert notes(project) == ["fragile:1:no_route_to_host"]
    rows = (
        db_of(own_dsn)
        .execute("select status, idempotency_key from yamlsched.job_runs order by id")
        .fetchall()
    )
    assert rows == [("dead", None), ("succeeded", "page:dead:1:1")]


@pytest.mark.slow
def test_twenty_ticks_at_once_in_an_empty_folder_start_one_database_and_run_each_slot_once(
    project: Path,
) -> None:
    from yamlsched.extras import embedded

    write(project, job("minutely", "* * * * *"))
    command = [sys.executable, "-m", "yamlsched", "tick", "-q"]
    ticks = [
        subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) for _ in range(20)
    ]
    try:
        outputs = [tick.communicate(timeout=120)[1] for tick in ticks]
        assert [tick.returncode for tick in ticks] == [0] * 20, outputs
        assert len(notes(project)) <= 1  # a new minute may have started
        assert not embedded.status(project / "schedules.yaml").running
    finally:
        embedded.discard(project / "schedules.yaml")
