"""How doctor, migrate and a worker handle databases that are unsuitable or badly configured."""

from __future__ import annotations

import json
import re
import resource
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.command_line import Cli, command_line
from support.documents import HOSTILE, assert_harmless
from support.rows import a_job
from yamlsched import db as store
from yamlsched.db import migrations
from yamlsched.db.query import sql_folder
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.doctor import cli as doctor_cli
from yamlsched.extras.doctor import doctor
from yamlsched.extras.doctor import doctor_offline as offline_checks
from yamlsched.extras.doctor import server as doctor_server
from yamlsched.schedule.load import load

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@contextmanager
def a_database(server: str, encoding: str) -> Iterator[str]:
    """Yield the DSN of a new database of this encoding."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        provider = "locale_provider libc" if admin.info.server_version >= 150_000 else ""
        how = f"template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C' {provider}"
        admin.execute(f"create database {name} {how}".encode())
        yield make_conninfo(server, dbname=name)
        admin.execute(f"drop database {name} with (force)".encode())


@pytest.mark.parametrize("form", ["text", "markdown", "html", "json"])
def test_the_doctor_shows_hostile_text_and_nothing_in_it_is_markup(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    checks = [
        doctor_cli.Check("file", "fail", HOSTILE, HOSTILE),
        doctor_cli.Check("database", "ok", "connected"),
    ]
    monkeypatch.setattr(doctor_cli, "_checks", lambda *_: iter(checks))

    shown = cli("doctor", "--format", form)

    assert shown.code == 1
    assert_harmless(shown.out, form)
    if form == "text":
        assert re.search(
            r"^fail  file      .*\n {16}</td>.*\nok    database  connected\n", shown.out
        )


# -- read-only databases


def test_the_doctor_fails_for_a_read_only_database(own_dsn: str, db_of: Any, cli: Cli) -> None:
    name = conninfo_to_dict(own_dsn)["dbname"]
    db_of(own_dsn).execute(f'alter database "{name}" set default_transaction_read_only = on')

    for attributes in ("any", "read-write"):
        dsn = make_conninfo(own_dsn, target_session_attrs=attributes)
        result = cli("doctor", "--dsn", dsn)

        assert result.code == 1, attributes
        assert "read-only" in result.out
        assert cli("tick", "--dsn", dsn).code == 3


def test_the_doctor_reports_that_a_server_is_a_standby(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = doctor_server.read_server(db)
    standby = type(seen)(**{**vars(seen), "is_standby": True, "is_read_only": True})
    monkeypatch.setattr(doctor_server, "read_server", lambda connection: standby)

    [found] = [finding for finding in doctor_server.server(db) if finding.name == "writable"]

    assert (found.level, found.what) == ("fail", "the server is a standby: nothing can be written")


# -- encodings and versions


def test_migrate_refuses_a_database_that_is_not_utf8_and_the_doctor_reports_it(
    server: str, cli: Cli
) -> None:
    with a_database(server, "LATIN1") as dsn:
        result = cli("migrate", "--dsn", dsn)
        assert result.code == 3
        assert "the database's encoding is LATIN1" in result.err
        assert "UTF8" in result.err

        result = cli("doctor", "--dsn", dsn)
        assert result.code == 1
        assert "fail  encoding" in result.out


def test_migrate_refuses_a_server_that_is_too_old(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIN_MAJOR", 99)

    result = cli("migrate")

    assert result.code == 3
    assert "is not supported: yamlsched works with versions 99 to 18" in result.err


# -- encryption and isolation levels


@pytest.mark.parametrize(
    "mode, is_encrypted, level, words",
    [
        ("prefer", False, "warn", "is not encrypted"),
        ("prefer", True, "warn", "allows unencrypted ones"),
        ("require", True, "ok", "is encrypted"),
        ("verify-full", True, "ok", "is encrypted"),
    ],
)
def test_the_doctor_reports_whether_a_network_connection_is_encrypted(
    mode: str, is_encrypted: bool, level: str, words: str
) -> None:
    found = doctor_server.encryption_of("db.example.org", mode, is_encrypted)

    assert (found.level, words in found.what) == (level, True)
    assert "sslmode=" in found.remedy or level == "ok"


def test_a_connection_on_the_same_host_need_not_be_encrypted(db: Db) -> None:
    assert list(doctor_server.encryption(db)) == []


def test_the_doctor_warns_about_isolation_levels_above_read_committed(
    own_dsn: str, db_of: Any
) -> None:
    name = conninfo_to_dict(own_dsn)["dbname"]
    db_of(own_dsn).execute(
        f"alter database \"{name}\" set default_transaction_isolation = 'serializable'"
    )

    with store.connect(own_dsn) as connection:
        [found] = [
            finding for finding in doctor_server.server(connection) if finding.name == "isolation"
        ]

    assert found.level == "warn"
    assert "default_transaction_isolation is serializable" in found.what


# -- a role that may only enqueue


def test_a_role_that_may_only_enqueue_does_so_from_the_command_line_and_nothing_else(
    own_dsn: str, db_of: Any, cli: Cli
) -> None:
    # given a login that may enqueue
    db = db_of(own_dsn)
    db.execute((sql_folder() / "roles.sql").read_bytes())
    name = f"webapp_{uuid.uuid4().hex[:12]}"
    db.execute(f"create role {name} login in role yamlsched_enqueuer")
    a_job(db)
    given = ("--dsn", make_conninfo(own_dsn, user=name))

    # then it creates a run for each key
    first = cli("enqueue", "purge", "--key", "purge:1", "--at", "90m", *given)
    again = cli("enqueue", "purge", "--key", "purge:1", *given)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("run 1 created, due ")
    assert (again.code, again.out) == (0, 'nothing created: run 1 has the key "purge:1"\n')

    # and gets clear errors for the rest
    unknown = cli("enqueue", "no_such_job", *given)
    at = cli("enqueue", "purge", "--at", "17:30", *given)
    listed = cli("runs", *given)
    assert (unknown.code, at.code, listed.code) == (1, 1, 3)
    assert 'no job "no_such_job"' in unknown.err
    assert "cannot read the job's time zone" in at.err
    assert "permission denied" in listed.err
    db.execute(f"drop role {name}")


def test_an_unknown_encoding_is_refused_before_anything_is_created(server: str) -> None:
    with (
        a_database(server, "SQL_ASCII") as dsn,
        store.connect(dsn) as connection,
        pytest.raises(EnvironmentFailed, match="SQL_ASCII"),
    ):
        migrations.migrate(connection)


# -- offline: what needs no database, for images


SCHEDULE = """
version: 1
environments: {production: {}}
jobs:
  good: {handler: offline_jobs.good}
  lists: {command: [no-such-program]}
"""


@pytest.fixture
def image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """The command line in a folder with a schedule. Whatever connects to a database fails the test."""
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    (tmp_path / "offline_jobs.py").write_text("print('imported')\ndef good(): ...\n")
    run = command_line("postgresql://app:hunter22@203.0.113.1/app", monkeypatch, capsys, tmp_path)
    monkeypatch.setattr(
        psycopg.Connection, "connect", lambda *_, **__: pytest.fail("a connection was tried")
    )
    monkeypatch.setattr(
        "yamlsched.extras.embedded.running", lambda *_, **__: pytest.fail("a database was started")
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield run
    sys.modules.pop("offline_jobs", None)


def levels(result: Any) -> dict[str, str]:
    return {check["name"]: check["level"] for check in json.loads(result.out)["checks"]}


def test_offline_the_doctor_checks_the_installation_and_the_schedule(
    image: Cli, tmp_path: Path
) -> None:
    result = image("doctor", "--offline", "--format", "json")

    assert result.code == 1
    assert levels(result) == {
        "python": "ok",
        "yamlsched": "ok",
        "time zones": "ok",
        "database": "ok",
        "file": "ok",
        "handlers": "ok",
        "imports": "ok",
        "programs": "fail",
        "lock files": "ok",
    }
    assert "imported" in result.err
    assert "hunter22" not in result.out + result.err

    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs: {good: {handler: offline_jobs.good}}\n"
    )
    assert image("doctor", "--offline").code == 0


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (
            ("offline_jobs.good", "offline_jobs.missing"),
            "handlers",
            'offline_jobs has no function "missing"',
        ),
        (
            ("[ls]", "[no-such-program]"),
            "programs",
            'there is no program "no-such-program" in PATH',
        ),
        (
            ("version: 1", "version: 1\nretention: {archive: no/such/folder}"),
            "archive",
            "cannot be written",
        ),
        (("version: 1", "version: 2"), "file", "has 1 error"),
    ],
    ids=["handler", "program", "archive", "invalid"],
)
def test_offline_the_doctor_finds(
    image: Cli, tmp_path: Path, change: tuple[str, str], check: str, words: str
) -> None:
    (tmp_path / "schedules.yaml").write_text(SCHEDULE.replace(*change, 1))

    result = image("doctor", "--offline")

    assert result.code == 1
    [line] = [line for line in result.out.splitlines() if re.match(f"fail +{check} ", line)]
    assert words in line


def test_offline_the_doctor_imports_handlers_and_finds_a_package_that_is_missing(
    image: Cli, tmp_path: Path
) -> None:
    (tmp_path / "offline_jobs.py").write_text("import no_such_package\ndef good(): ...\n")

    result = image("doctor", "--offline")

    assert result.code == 1
    assert (
        'fail  imports     handler of job "good": importing offline_jobs failed: ModuleNotFoundError'
        in result.out
    )

    # a comment suppresses it, as in validate --import
    ignored = SCHEDULE.replace(
        "good: {handler: offline_jobs.good}",
        "good: {handler: offline_jobs.good}  # yamlsched: ignore[YS309]",
        1,
    )
    (tmp_path / "schedules.yaml").write_text(ignored)
    assert "ok    imports" in image("doctor", "--offline").out


def test_offline_a_missing_file_and_a_dsn_that_is_not_valid_are_errors(
    image: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").unlink()

    result = image(
        "doctor",
        "--offline",
        "--dsn",
        "postgresql+psycopg://app:hunter22@db/app",
        "--format",
        "json",
    )

    found = levels(result)
    assert (result.code, found["file"], found["database"]) == (1, "fail", "fail")
    assert "hunter22" not in result.out


def test_without_a_dsn_an_image_with_the_extra_embedded_is_a_warning() -> None:
    assert offline_checks.dsn_given(None, has_embedded=False).level == "ok"
    assert offline_checks.dsn_given(None, has_embedded=True).level == "warn"
    assert offline_checks.dsn_given("embedded", has_embedded=False).level == "warn"


def test_an_archive_on_a_full_disk_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\nretention: {archive: .}\njobs: {}\n")
    loaded = load(file.read_bytes(), str(file), None)
    [before] = doctor.archive(loaded, file)

    # a process that may write no byte to any file, as on a full disk
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        [full] = doctor.archive(loaded, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert (before.level, full.level) == ("ok", "fail")
    assert "File too large" in full.what
    assert "free space" in full.remedy


def test_a_host_whose_ticks_are_refused_since_a_sync_for_another_namespace_is_reported(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: {gc: {handler: gc.collect}}\n")
    assert cli("tick").code == 0
    moving = cli("sync", "--namespace", "other")
    assert "Add --namespace other to its crontab line" in moving.err

    assert cli("tick").code == 1
    at_first = cli("doctor")
    db.execute("update yamlsched.hosts set seen_at = now() - interval '10 minutes'")
    later = cli("doctor")
    for checked, level in ((at_first, "warn"), (later, "fail")):
        [line] = [
            line for line in checked.out.splitlines() if line.startswith(f"{level}  namespace")
        ]
        assert "its ticks without --namespace are refused" in line
        assert "yamlsched sync --namespace default" in checked.out
    assert later.code == 1

    assert cli("sync", "--namespace", "default").code == 0
    assert (cli("tick").code, "are refused" in cli("doctor").out) == (0, False)


def test_a_job_whose_slots_cannot_be_written_fails_a_check(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: {gc: {handler: gc.collect}}\n")
    assert cli("tick").code == 0
    before = cli("doctor").out
    db.execute("update yamlsched.job_definitions set slots_error = 'disk full'")

    checked = cli("doctor")

    assert "fail  slots" not in before
    assert "fail  slots" in checked.out
    assert "gc: its due slots cannot be written: disk full" in checked.out
    assert checked.code == 1
