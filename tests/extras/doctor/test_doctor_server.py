"""``doctor``: what it finds in the database and its server."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.database import code_of_doctor
from support.rows import a_place
from yamlsched.ask import health
from yamlsched.extras.doctor import doctor
from yamlsched.extras.doctor import server as doctor_server

HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_the_doctor_finds_no_failure_in_a_valid_setup(db: Db, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("def run(): pass\n")
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n"
    )
    cli("sync")

    result = cli("doctor", "--format", "json")

    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert result.code == code_of_doctor(db)
    assert [name for name, check in checks.items() if check["level"] == "fail"] == [
        "durability"
    ] * result.code
    assert {name for name, check in checks.items() if check["level"] == "ok"} >= {
        *(
            "file",
            "handlers",
            "database",
            "server",
            "clock",
            "tables",
            "ticks",
            "in use",
            "time zones",
        ),
    }


def test_the_doctor_looks_for_programs_that_start_workers_and_counts_their_connections(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_text("""
version: 1
queues:
  here: {concurrency: 1, start: {command: [sh], max_workers: 2}}
  there: {concurrency: 10, start: {command: [no-such-program], max_workers: 1000}}
jobs: {}
""")

    result = cli("doctor", "--format", "json")

    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert (checks["start of here"]["level"], checks["start of there"]["level"]) == ("ok", "warn")
    assert "starts no workers of queue there" in checks["start of there"]["what"]
    assert checks["started workers"]["level"] == "warn"
    assert f"may take {2 * 6 + 1000 * 24} connections" in checks["started workers"]["what"]


def test_the_doctor_finds_a_missing_handler(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs:\n  purge: {handler: nowhere.run, cron: '0 2 * * *'}\n"
    )

    result = cli("doctor")

    assert result.code == 1
    assert "fail  handlers" in result.out
    assert "nowhere" in result.out

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/nowhere.py").write_text("def run(): ...\n")
    assert re.search("ok +handlers", cli("doctor", "--path", tmp_path / "lib").out)


def test_the_doctor_does_not_report_that_an_invalid_file_will_be_applied(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs:\n  purge: {handler: jobs.run, retires: 3}\n"
    )

    result = cli("doctor")

    assert result.code == 1
    assert "schedules.yaml has 1 error\n" in result.out
    assert "yamlsched sync" not in result.out
    assert "connected to a server, not to the embedded database" in result.out
    assert re.search("ok +pooler +none was detected", result.out)


def test_the_doctor_reports_what_to_do_without_a_database(cli: Cli) -> None:
    result = cli("doctor", "--dsn", "host=/nowhere")

    assert result.code == 1
    assert "fail  database" in result.out
    assert "check YAMLSCHED_DSN, its password, the network and pg_hba.conf" in result.out


def test_the_doctor_reports_missing_migrations(own_dsn: str, cli: Cli) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as connection:
        connection.execute("delete from yamlsched.migrations where version > 1")

    result = cli("doctor", "--dsn", own_dsn)

    assert result.code == 1
    assert "yamlsched migrate" in result.out


@pytest.mark.parametrize("is_embedded", [False, True])
def test_tables_of_a_newer_yamlsched_are_no_matter_of_the_network(
    own_dsn: str, cli: Cli, monkeypatch: pytest.MonkeyPatch, is_embedded: bool
) -> None:
    monkeypatch.setattr("yamlsched.cli._settings.Settings.is_embedded", is_embedded)
    with psycopg.connect(own_dsn, autocommit=True) as connection:
        connection.execute("update yamlsched.migrations set version = 999")

    result = cli("doctor", "--dsn", own_dsn)

    assert result.code == 1
    assert "fail  tables" in result.out
    assert "upgrade yamlsched on this host" in result.out
    assert "pg_hba.conf" not in result.out


def test_the_doctor_compares_the_clock_with_the_database(db: Db) -> None:
    [finding] = [
        f for f in doctor_server.server(db, host_now=datetime.now(UTC) + HOUR) if f.name == "clock"
    ]

    assert (finding.level, finding.what[:21]) == ("warn", "this host's clock is ")
    assert finding.what.endswith("ahead of the database's")


@pytest.mark.parametrize(
    ("age", "level"),
    [(timedelta(seconds=30), "ok"), (timedelta(minutes=6), "fail"), (None, "warn")],
)
def test_the_doctor_reports_whether_there_are_ticks(
    db: Db, age: timedelta | None, level: str
) -> None:
    now = health.read(db, "default", HOUR)
    measured = replace(
        now, last_tick_at=None if age is None else now.now - age, last_tick_host="web-1"
    )

    assert doctor.ticking(measured, socket.gethostname()).level == level


def test_the_doctor_compares_the_file_in_use_and_the_time_zone_data(db: Db) -> None:
    def levels(tzdata: str, sha256: str | None) -> list[str]:
        return [
            finding.level
            for finding in doctor.files(health.read(db, "default", HOUR), tzdata, sha256)
        ]

    assert levels("2026a", None) == ["warn", "ok"]
    a_place(db, tzdata_version="2026a")
    assert levels("2026a", "a" * 64) == ["ok", "ok"]
    assert levels("2025b", "b" * 64) == ["warn", "warn"]
