"""``status``: the state of a namespace, for people, programs and health checks."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.health import a_healthy_job, of_metrics
from support.rows import a_job, a_place, a_run, value

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_status_shows_everything_on_one_screen(db: Db, cli: Cli) -> None:
    # given one job of each kind
    a_place(db)
    a_run(db, a_job(db, "good", next_slot_at=NOON.replace(year=2100)), "succeeded")
    bad = a_job(db, "bad", schedule=None)
    died_as = a_run(db, bad, "dead")
    a_job(
        db,
        "held",
        paused_at=NOON,
        paused_by="ann",
        paused_reason="upgrade",
        paused_until=NOON.replace(year=2100),
    )
    a_job(db, "off", enabled=False)
    a_job(db, "gone", retired_at=NOON)
    a_run(db, a_job(db, "busy", schedule=None), "running", locked_by="web-2:9:dead")

    # when
    result = cli("status")

    # then
    out = re.sub(r"\d+s ago", "just now", result.out)
    lines = out.splitlines()
    assert result.code == 0
    assert lines[1].startswith("file       aaaaaaaa in use since ")
    assert "last tick  just now, by web-1" in lines
    assert "runs       0 queued, 1 running, 0 waiting to retry" in lines
    assert "dead       1 in the last hour, 1 in the last day" in lines
    assert "workers    web-2 (1 running), web-1 (just now)" in lines
    states = {line.split()[0]: line.split()[1] for line in lines[9:14]}
    assert states == {
        "bad": "dead",
        "busy": "running",
        "good": "ok",
        "held": "paused",
        "off": "disabled",
    }
    assert re.search(
        r"paused \d+d\d* ?\w* ago by ann until 2100-01-14T12:00:00Z: upgrade", result.out
    )
    died = "  bad: 1 run died within 1h: OSError: no route to host\n"
    assert f"{died}      yamlsched show {died_as}; then yamlsched retry {died_as}" in result.out
    assert "\x1b" not in result.out


def test_of_many_jobs_only_those_with_problems_are_listed(db: Db, cli: Cli) -> None:
    for number in range(40):
        a_job(db, f"job_{number}", schedule=None)
    a_run(db, a_job(db, "bad", schedule=None), "dead")

    result = cli("status").out

    assert "and 40 more are healthy: --all lists them" in result
    assert "bad" in result
    assert "job_7 " not in result
    assert "job_7 " in cli("status", "--all").out


def test_check_prints_each_problem_on_a_line_and_exits_1(db: Db, cli: Cli) -> None:
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    well = cli("status", "--check")
    assert (well.code, re.sub(r"\d+s", "now", well.out), well.err) == (
        0,
        "ok: 1 job, last tick now ago\n",
        "",
    )

    run = a_run(db, job, "dead", last_error="two\nlines")

    assert cli("status", "--check") == (1, "purge: 1 run died within 1h: OSError: two lines\n", "")
    assert cli("status", "--check", "--max-dead", 1).code == 0
    document = json.loads(cli("status", "--check", "--format", "json").out)
    assert document["healthy"] is False
    assert document["problems"][0]["remedy"] == f"yamlsched show {run}; then yamlsched retry {run}"
    assert document["jobs"][0]["state"] == "dead"


def test_a_host_whose_first_file_is_refused_is_a_problem_until_its_file_is_valid(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    # given a namespace with a file in use
    valid = "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n"
    (tmp_path / "schedules.yaml").write_text(valid)
    assert cli("sync").code == 0

    # when another path, from which nothing was ever applied, has a file with an error
    new = tmp_path / "new" / "schedules.yaml"
    new.parent.mkdir()
    new.write_text(valid.replace("cron", "crn"))
    assert [cli("tick", "--file", new).code for _ in range(2)] == [1, 1]

    # then it is reported, and is still not applied
    check = cli("status", "--check")
    assert check.out.startswith(f"{socket.gethostname()}:{new} has 1 error since ")
    assert value(db, "select count(*) from yamlsched.job_definitions where retired_at is null") == 1

    # when its file is that of the others
    new.write_text(valid)
    assert cli("tick", "--file", new).code == 0
    assert cli("status", "--check").code == 0


@pytest.mark.parametrize("fixed", ["as before", "edited"])
def test_an_invalid_file_is_a_problem_until_it_is_replaced_by_a_valid_one(
    db: Db, cli: Cli, tmp_path: Path, fixed: str
) -> None:
    # given a place that had a valid file
    file = tmp_path / "schedules.yaml"
    valid = "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n"
    file.write_text(valid)
    assert cli("tick").code == 0

    # when two invalid versions are deployed, and minutes pass
    file.write_text(
        "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *', retires: 3, max_attempts: 0}\n"
    )
    assert [cli("sync").code, cli("sync").code] == [1, 1]

    # then --check reports it with the time of the first
    since = value(db, "select refused_at from yamlsched.hosts where cardinality(errors) = 2")
    expected = (
        f"{socket.gethostname()}:{file} has 2 errors since {since:%Y-%m-%dT%H:%M:%SZ}; "
        'not applied: 3:51: error[YS102]: unknown key "retires" in job "purge". Known keys: '
    )
    check = cli("status", "--check")
    assert (check.code, check.out.count("\n"), check.err) == (1, 1, "")
    assert check.out.startswith(expected)
    assert expected in cli("status").out
    [refused] = json.loads(cli("status", "--format", "json").out)["refused"]
    assert (refused["mistakes"], refused["place"]) == (2, f"{socket.gethostname()}:{file}")
    assert of_metrics(db, "yamlsched_refused_files") == 1

    # when a valid file is there again
    file.write_text(valid if fixed == "as before" else valid.replace("0 2", "0 3"))
    cli("sync")

    assert cli("status", "--check").code == 0
    assert of_metrics(db, "yamlsched_refused_files") == 0


def test_a_database_that_cannot_be_reached_is_exit_3_for_monitors(cli: Cli) -> None:
    result = cli("status", "--check", "--dsn", "host=/nowhere dbname=none")

    assert result.code == 3
    assert result.err.startswith("yamlsched: no connection to the database: ")
