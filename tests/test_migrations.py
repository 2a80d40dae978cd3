"""Tables and a yamlsched of different versions: what each does when it meets the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.rows import a_job
from yamlsched import db as store
from yamlsched.db import migrations
from yamlsched.db.migrations import Migration, NewerTables, WrongTables
from yamlsched.extras.doctor import server as doctor_server

Db = psycopg.Connection[Any]
OWN = migrations.latest_version()
ADDED = Migration(
    OWN + 1,
    f"{OWN + 1:04}_note",
    "alter table yamlsched.effects add note text;",
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
    assert migrations.applied(connection) == {1: first.checksum, 2: added.checksum}


def rows(db: Db) -> list[Any]:
    """Return the rows that verbs change; that a place ticked is recorded even if it can do nothing else."""
    tables = ("job_definitions", "job_runs", "operator_actions", "edits", "migrations")
    return [db.execute(f"select * from yamlsched.{table}".encode()).fetchall() for table in tables]


def migrate_as_newer(db: Db, *added: Migration) -> None:
    with pytest.MonkeyPatch.context() as patch:
        release(patch, *added)
        migrations.migrate(db)


def test_tables_are_migrated_if_they_are_older_and_refused_if_they_are_newer() -> None:
    own = {each.version: each.checksum for each in migrations.all_migrations()}

    assert migrations.must_migrate({}) is True
    assert migrations.must_migrate(own) is False
    with pytest.raises(NewerTables, match="upgrade yamlsched on this host"):
        migrations.must_migrate({**own, OWN + 1: "x"})


def test_older_tables_are_refused_unless_they_may_be_migrated(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, ADDED)

    with pytest.raises(WrongTables, match=f'version {OWN} of {OWN + 1}: run "yamlsched migrate"'):
        migrations.ensure_usable(db, apply=False)
    migrations.ensure_usable(db, apply=True)

    assert max(migrations.applied(db)) == OWN + 1


def test_no_verb_works_on_newer_tables_and_nothing_is_changed(db: Db, cli: Cli) -> None:
    cli("sync")
    a_job(db)
    migrate_as_newer(db, ADDED)
    said = (
        f"yamlsched: the database has tables of version {OWN + 1}, created by a newer yamlsched, and "
        f"this one works with version {OWN}: upgrade yamlsched on this host\n"
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


def test_dry_run_reports_what_would_be_applied_and_changes_nothing(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = migrations.applied(db)
    release(monkeypatch, ADDED)

    assert cli("migrate", "--dry-run").out == f"would apply {ADDED.name}\n"
    assert migrations.applied(db) == before
    assert cli("migrate").out == f"applied {ADDED.name}\n"
    assert max(migrations.applied(db)) == OWN + 1
    assert cli("migrate").out == cli("migrate", "--dry-run").out == "the tables are up to date\n"


def test_printed_migrations_record_what_they_apply(
    empty_dsn: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, ADDED)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(cli("migrate", "--sql").out.encode())
    with store.connect(empty_dsn) as db:
        assert max(migrations.applied(db)) == OWN + 1
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
