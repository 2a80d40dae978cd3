"""Hosts with a wrong clock: real processes in which every clock of Python is shifted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.clock import WRONG_CLOCK
from support.command_line import yamlsched
from support.project import until
from support.schedules import HOUR, MINUTE
from yamlsched import db as store

pytestmark = pytest.mark.story

HANDLER = """
import os, time
from yamlsched import Run

def look(run: Run):
    return {"shift": round(time.time() - os.stat(__file__).st_mtime) // 3600}
"""
JOBS = {
    "not_yet": {"handler": "clocked.look", "cron": "30 2 29 2 *"},
    "by_hand": {"handler": "clocked.look"},
}


def run(folder: Path, dsn: str, shift: timedelta, *words: str) -> str:
    """Run a command with a clock that is wrong by ``shift``; return its log."""
    (folder / "clock").mkdir(exist_ok=True)
    (folder / "clock" / "sitecustomize.py").write_text(WRONG_CLOCK)
    env = {
        **os.environ,
        "PYTHONPATH": str(folder / "clock"),
        "SHIFT": str(int(shift.total_seconds())),
        "TMPDIR": str(folder),
    }
    start = "from yamlsched.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        start,
        *words,
        "--dsn",
        dsn,
        "--file",
        str(folder / "schedules.yaml"),
    ]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("shift", [5 * HOUR, -5 * HOUR], ids=["ahead", "behind"])
def test_a_wrong_host_clock_changes_only_the_timestamps_of_log_lines(
    own_dsn: str, tmp_path: Path, shift: timedelta
) -> None:
    (tmp_path / "clocked.py").write_text(HANDLER)
    with store.connect(own_dsn) as db:
        before = db.execute("select clock_timestamp() as now").fetchone().now  # type: ignore[union-attr]
        # half an hour from the next slot, so that none is due during the test
        last = before.replace(second=0, microsecond=0) - 30 * MINUTE
        slots = [last - 2 * HOUR, last - HOUR, last]
        owed_job = {
            "handler": "clocked.look",
            "cron": f"{last.astimezone(UTC).minute} * * * *",
            "catchup": "all",
        }
        (tmp_path / "schedules.yaml").write_text(
            json.dumps({"version": 1, "jobs": {"owed": owed_job, **JOBS}})
        )
        run(tmp_path, own_dsn, shift, "sync")
        db.execute(
            "update yamlsched.job_definitions set effective_from = %s, last_slot_at = null, next_slot_at = %s "
            "where job_type = 'owed'",
            [slots[0] - MINUTE, slots[0]],
        )
        db.execute("select yamlsched.enqueue('by_hand', '{}', run_at => now() + interval '2 h')")
        db.execute("select yamlsched.enqueue('by_hand', '{}')")

        run(tmp_path, own_dsn, shift, "sync")
        made = db.execute(
            "select idempotency_key, run_at, scheduled_for from yamlsched.job_runs where job_type = 'owed' order by id"
        )
        owed = made.fetchall()
        log = run(tmp_path, own_dsn, shift, "tick", "--path", str(tmp_path))

        after = db.execute("select clock_timestamp() as now").fetchone().now  # type: ignore[union-attr]
        rows = db.execute("select * from yamlsched.job_runs order by id").fetchall()
        jobs = db.execute("select * from yamlsched.job_definitions order by job_type").fetchall()
        gaps = db.execute("select 1 from yamlsched.skipped_slots").fetchall()

    assert [row.idempotency_key for row in owed] == [
        f"owed:{slot.astimezone(UTC):%Y-%m-%dT%H:%M}Z" for slot in slots
    ]
    assert [row.run_at for row in owed] == [row.scheduled_for for row in owed] == slots
    assert [(row.job_type, row.status) for row in rows] == [
        *(("by_hand", "queued"), ("by_hand", "succeeded")),
        *[("owed", "succeeded")] * 3,
    ]
    assert [row.scheduled_for for row in rows[2:]] == slots
    assert gaps == []
    assert all(before <= row.started_at <= row.finished_at <= after for row in rows[1:])
    assert all(
        before <= instant <= after
        for row in rows[1:]
        for instant in (row.created_at, row.finished_at)
    )
    assert [(job.job_type, job.last_slot_at) for job in jobs] == [
        ("by_hand", None),
        ("not_yet", None),
        ("owed", slots[-1]),
    ]
    assert jobs[2].next_slot_at == slots[-1] + HOUR
    # the shift has reached the handlers and the log
    assert {row.result["shift"] for row in rows[1:]} == {int(shift / HOUR)}
    said = [
        datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")) for line in log.splitlines()
    ]
    assert said
    assert all(abs(moment - shift - after) < HOUR for moment in said)


@pytest.mark.parametrize("shift", [5 * HOUR, -5 * HOUR], ids=["ahead", "behind"])
def test_leases_follow_the_clock_of_the_database_on_a_host_with_a_wrong_clock(
    own_dsn: str, tmp_path: Path, shift: timedelta
) -> None:
    (tmp_path / "clocked.py").write_text(
        "import time, pathlib\n"
        "def look(run):\n"
        "    pathlib.Path('started').touch()\n"
        "    while not pathlib.Path('go').exists():\n"
        "        time.sleep(0.01)\n"
    )
    (tmp_path / "schedules.yaml").write_text(
        json.dumps({"version": 1, "jobs": {"x": {"handler": "clocked.look"}}})
    )
    tick = ("tick", "--path", str(tmp_path))
    with store.connect(own_dsn) as db:
        assert yamlsched("sync", "--dsn", own_dsn, cwd=tmp_path).returncode == 0
        db.execute("select yamlsched.enqueue('x', '{}')")
        with ThreadPoolExecutor(1) as pool:
            holder = pool.submit(run, tmp_path, own_dsn, shift, *tick)
            try:
                until(
                    lambda: (tmp_path / "started").exists() or holder.done(), "the handler starts"
                )
                leased = db.execute(
                    "select locked_until - now() as lasts, (select lease from yamlsched.job_definitions) as lease, "
                    "locked_by from yamlsched.job_runs"
                ).fetchone()
                run(tmp_path, own_dsn, -shift, *tick)
                held = db.execute(
                    "select locked_by, attempts, status from yamlsched.job_runs"
                ).fetchone()
            finally:
                (tmp_path / "go").touch()
            holder.result()
        ended = db.execute("select attempts, status from yamlsched.job_runs").fetchone()

    assert leased is not None
    assert timedelta(0) < leased.lasts <= leased.lease
    assert held == (leased.locked_by, 1, "running")
    assert ended == (1, "succeeded")
