"""The identity of a database: created by migrate, kept by a dump and its restore, replaced on demand."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from support.command_line import Cli, command_line
from support.rows import a_job, a_place, a_run
from yamlsched import db as store
from yamlsched.extras import embedded
from yamlsched.extras.doctor import server as doctor_server
from yamlsched.extras.embedded import dump
from yamlsched.handler.backends import Backend
from yamlsched.handler.run import Run
from yamlsched.handler.sessions import sessions
from yamlsched.runs import effects

Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def the_identity(connection: Db) -> str:
    found = effects.read_identity(connection)
    assert found is not None
    return found.identity


def test_migrate_creates_the_identity_once(empty_dsn: str, db: Db) -> None:
    with store.connect(empty_dsn) as connection:
        store.migrations.migrate(connection)
        first = the_identity(connection)
        store.migrations.migrate(connection)

        assert the_identity(connection) == first != the_identity(db)
    assert str(uuid.UUID(first)) == first


def test_there_is_at_most_one_identity(db: Db) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute("insert into yamlsched.database_identity default values")
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("insert into yamlsched.database_identity (only_row) values (false)")


def test_the_verb_shows_it_and_a_new_one_is_recorded(db: Db, cli: Cli) -> None:
    a_place(db)
    before = the_identity(db)
    assert cli("db", "identity") == (0, f"{before}\n", "")

    after = cli("db", "identity", "--new", "--by", "ann").out.strip()

    assert after == the_identity(db) != before
    assert json.loads(cli("db", "identity", "--format", "json").out)["identity"] == after
    [action] = db.execute(
        "select who, verb, target, detail from yamlsched.operator_actions"
    ).fetchall()
    assert action == ("ann", "identity", "database", {"was": before, "is": after})


def an_effect(db: Db, dsn: str, run: int) -> str:
    """Claim an effect of a running run, as its handler does, and return the provider's key."""
    row = db.execute(
        "select attempts, locked_by from yamlsched.job_runs where id = %s", [run]
    ).fetchone()
    backend = Backend(dsn, "default", run, row.attempts, row.locked_by)  # type: ignore[union-attr]
    attempt = Run(run, "purge", None, None, row.attempts, 5, {}, False, backend)  # type: ignore[union-attr]
    with attempt.once("post", in_doubt="repeat") as effect:
        pass
    sessions.close()
    return effect.key


def test_a_restored_dump_gives_the_same_keys_and_a_copy_with_a_new_identity_others(
    empty_dsn: str, own_dsn: str, db_of: Any, tmp_path: Path
) -> None:
    # given a dump with a running run
    original, tools, file = db_of(own_dsn), embedded.find_binaries(False), tmp_path / "dump.sql"
    run = a_run(original, a_job(original), "running")
    dump.dump_to_file(own_dsn, tools, file)
    key = an_effect(original, own_dsn, run)

    # when it is restored into a migrated database without data
    with store.connect(empty_dsn) as connection:
        store.migrations.migrate(connection)
    dump.restore(empty_dsn, tools, file, clean=False)

    # then the run's effect has the same key there, until the copy gets its own identity
    copy = db_of(empty_dsn)
    assert the_identity(copy) == the_identity(original)
    assert an_effect(copy, empty_dsn, run) == key
    copy.execute("delete from yamlsched.effects")
    effects.renew_identity(copy, "default", "ann")
    assert an_effect(copy, empty_dsn, run) != key


def test_the_doctor_finds_a_database_without_identity_and_migrate_fixes_it(
    db: Db, cli: Cli
) -> None:
    db.execute("delete from yamlsched.database_identity")

    found = doctor_server.tables(db)
    result = cli("db", "identity")

    assert (found.level, found.remedy.split(",")[0]) == ("fail", "yamlsched db identity --new")
    assert (result.code, "yamlsched db identity --new" in result.err) == (1, True)
    a_place(db)
    assert cli("db", "identity", "--new").code == 0
    assert doctor_server.tables(db).level == "ok"


# -- standbys


def standbys(db: Db) -> list[Any]:
    return [finding for finding in doctor_server.server(db) if finding.name == "standbys"]


def test_the_doctor_warns_about_an_asynchronous_standby(own_dsn: str, db_of: Any) -> None:
    # given a replication session, as of a standby
    db = db_of(own_dsn)
    standby = pq.PGconn.connect(f"{own_dsn} replication=true".encode())
    try:
        position = standby.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
        assert position is not None
        assert standby.exec_(b"START_REPLICATION " + position).status == pq.ExecStatus.COPY_BOTH

        [found] = standbys(db)
    finally:
        standby.finish()

    assert (found.level, found.what) == ("warn", "1 standby, and no commit waits for one")
    assert "docs/guarantees.md" in found.remedy


def test_the_doctor_warns_if_no_standby_replicates_a_server_of_several(db: Db, dsn: str) -> None:
    several = make_conninfo(dsn, host="db1,db2")

    [found] = [
        finding for finding in doctor_server.server(db, dsn=several) if finding.name == "standbys"
    ]

    assert (found.level, found.what) == (
        "warn",
        "the DSN names 2 servers, and no standby replicates this one",
    )
    assert [
        finding for finding in doctor_server.server(db, dsn=dsn) if finding.name == "standbys"
    ] == []
