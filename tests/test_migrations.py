"""Tables and a yamlsched of different versions: what each does when it meets the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.rows import a_job, value
from yamlsched import db as store
from yamlsched.db import migrations
from yamlsched.db.migrations import Migration, NewerTables, Tables, WrongTables
from yamlsched.extras.doctor import server as doctor_server

Db = psycopg.Connection[Any]
OWN = migrations.latest_version()
ADDED = Migration(
    OWN + 1,
    f"{OWN + 1:04}_note",
    f"-- oldest_supported: {OWN}\nalter table yamlsched.effects add note text;",
)
CHANGED = Migration(
    OWN + 2, f"{OWN + 2:04}_renamed", "alter table yamlsched.effects rename note to remark;"
)


@pytest.fixture
def cli(
    own_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Cli:
    (tmp_path / "schedules.yaml").write_text(
        json.dumps({"version": 1, "jobs": {"gc": {"handler": "gc.collect"}}})
    )
    return command_line(own_dsn, monkeypatch, capsys, tmp_path)


@pytest.fixture
def db(own_dsn: str, db_of: Any) -> Db:
    return db_of(own_dsn)  # type: ignore[no-any-return]


def release(monkeypatch: pytest.MonkeyPatch, *added: Migration) -> None:
    """Make this a yamlsched with more migrations."""
    known = [*migrations.all_migrations(), *added]
    monkeypatch.setattr(migrations, "all_migrations", lambda: known)


def test_the_schema_is_version_1_and_each_numbered_file_makes_the_next(
    empty_dsn: str, db_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given a yamlsched with a second migration
    (tmp_path / "migrations").mkdir()
    (tmp_path / "schema.sql").write_text((migrations.sql_folder() / "schema.sql").read_text())
    added = Migration(2, "0002_note", ADDED.text)
    (tmp_path / "migrations" / f"{added.name}.sql").write_text(added.text)
    connection = db_of(empty_dsn)
    [first] = migrations.migrate(connection)

    monkeypatch.setattr(migrations, "sql_folder", lambda: tmp_path)
    migrations.all_migrations.cache_clear()
    try:
        assert migrations.latest_version() == 2
        assert migrations.migrate(connection) == [added]
    finally:
        monkeypatch.undo()
        migrations.all_migrations.cache_clear()

    assert (first.version, first.name) == (1, "0001_schema")
    assert migrations.applied(connection)[:2] == (2, 1)


def rows(db: Db) -> list[Any]:
    """Return the rows that verbs change; that a place ticked is recorded even if it can do nothing else."""
    tables = ("job_definitions", "job_runs", "operator_actions", "edits", "migrations")
    return [db.execute(f"select * from yamlsched.{table}".encode()).fetchall() for table in tables]


def migrate_as_newer(db: Db, *added: Migration) -> None:
    with pytest.MonkeyPatch.context() as patch:
        release(patch, *added)
        migrations.migrate(db)


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (Tables(0, 0), True),
        (Tables(OWN - 1, 1), True),
        (Tables(OWN, 1), False),
        (Tables(OWN, OWN), False),
        (Tables(OWN + 1, OWN), False),
        (Tables(OWN + 7, 1), False),
        (Tables(OWN + 1, OWN + 1), NewerTables),
        (Tables(OWN + 7, OWN + 1), NewerTables),
    ],
)
def test_tables_are_used_if_they_support_this_version_and_migrated_if_they_are_older(
    found: Tables, answer: Any
) -> None:
    if isinstance(answer, bool):
        assert migrations.must_migrate(found, apply=True) is answer
    else:
        with pytest.raises(answer, match="upgrade yamlsched on this host"):
            migrations.must_migrate(found, apply=True)
    if answer is True:
        with pytest.raises(WrongTables, match='run "yamlsched migrate"'):
            migrations.must_migrate(found, apply=False)


def test_each_migration_supports_itself_and_none_that_is_newer(db: Db) -> None:
    for migration in (*migrations.all_migrations(), ADDED, CHANGED):
        assert 1 <= migration.oldest_supported <= migration.version
    assert (ADDED.oldest_supported, CHANGED.oldest_supported) == (OWN, OWN + 2)
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(
            "insert into yamlsched.migrations (version, name, checksum, oldest_supported) values (%s, 'x', '', %s)",
            [OWN + 1, OWN + 2],
        )


def test_every_verb_works_on_newer_tables_that_support_it(db: Db, cli: Cli) -> None:
    migrate_as_newer(db, ADDED)

    for verb in (
        ["sync"],
        ["enqueue", "gc"],
        ["tick"],
        ["status"],
        ["runs"],
        ["show", "1"],
        ["plan"],
        ["metrics"],
    ):
        assert (verb, cli(*verb).code) == (verb, 0)
    assert value(db, "select status from yamlsched.job_runs") == "succeeded"
    assert cli("migrate").out == (
        f"the tables are up to date: version {OWN + 1}, of a newer yamlsched; they support version {OWN}, that of this "
        "host\n"
    )
    found = doctor_server.tables(db)
    assert (found.level, found.remedy) == ("warn", "upgrade yamlsched on this host too")
    assert str(OWN + 1) in found.what


def test_no_verb_works_on_newer_tables_that_do_not_support_it_and_nothing_is_changed(
    db: Db, cli: Cli
) -> None:
    cli("sync")
    a_job(db)
    migrate_as_newer(db, ADDED, CHANGED)
    said = (
        f"yamlsched: the database has tables of version {OWN + 2}, created by a newer yamlsched. They support hosts "
        f"with version {OWN + 2} or later, and this one has {OWN}: upgrade yamlsched on this host\n"
    )
    before = rows(db)

    for verb in (
        *(
            ["sync"],
            ["tick"],
            ["tick", "--migrate"],
            ["work"],
            ["work", "--loop"],
            ["work", "--loop", "--migrate"],
        ),
        *(
            ["status"],
            ["runs"],
            ["plan"],
            ["metrics"],
            ["pause", "purge"],
            ["enqueue", "purge"],
            ["prune"],
            ["migrate"],
        ),
    ):
        assert (verb, cli(*verb)) == (verb, (3, "", said))
    assert doctor_server.tables(db).level == "fail"
    assert rows(db) == before


def test_migrate_reports_which_hosts_continue_and_dry_run_changes_nothing(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = migrations.applied(db)
    release(monkeypatch, ADDED)
    continues = (
        f"hosts with version {OWN} or later continue to work: upgrade them one after the other\n"
    )
    assert cli("migrate", "--dry-run").out == f"would apply {ADDED.name}\n{continues}"
    assert migrations.applied(db) == before
    assert cli("migrate").out == f"applied {ADDED.name}\n{continues}"
    assert migrations.applied(db)[:2] == (OWN + 1, OWN)

    release(monkeypatch, CHANGED)
    stop = (
        f"hosts with a version before {OWN + 2} stop working until yamlsched is upgraded on them\n"
    )
    assert cli("migrate", "--dry-run").out == f"would apply {CHANGED.name}\n{stop}"
    assert cli("migrate").out == f"applied {CHANGED.name}\n{stop}"
    assert migrations.applied(db)[:2] == (OWN + 2, OWN + 2)
    assert cli("migrate").out == cli("migrate", "--dry-run").out == "the tables are up to date\n"


def test_printed_migrations_record_what_they_support(
    empty_dsn: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, ADDED)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(cli("migrate", "--sql").out.encode())
    with store.connect(empty_dsn) as db:
        assert migrations.applied(db)[:2] == (OWN + 1, OWN)
        assert migrations.migrate(db) == []


def test_tick_and_doctor_refuse_tables_that_were_created_from_another_file_of_a_migration(
    db: Db, cli: Cli
) -> None:
    db.execute("update yamlsched.migrations set checksum = 'another' where version = 1")

    tick, checked = cli("tick"), cli("doctor")

    assert (tick.code, checked.code) == (3, 1)
    assert "was applied from a different file than the one in this yamlsched" in tick.err
    [line] = [line for line in checked.out.splitlines() if line.startswith("fail  tables")]
    assert "0001_schema was applied from a different file" in line
    assert rows(db)[0] == []
