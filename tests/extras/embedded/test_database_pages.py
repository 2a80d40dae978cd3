"""The commands of docs/database.md and docs/backup.md, executed as a reader would, on servers of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import namedtuple_row

from support.pages import commands, shell
from yamlsched.extras import embedded

pytestmark = pytest.mark.slow
JOBS = """
def report(run, week=0):
    with run.once("mail", in_doubt="raise") as effect:
        effect.result = week
    with run.transaction() as connection:
        connection.execute("select 1")

def waits(run):
    import pathlib, time
    pathlib.Path("started").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

def nightly(): pass
"""
SCHEDULE = {
    "version": 1,
    "jobs": {
        "report": {"handler": "jobs.report"},
        "waits": {"handler": "jobs.waits", "lease": "30s"},
        "nightly": {
            "handler": "jobs.nightly",
            "cron": "0 2 * * *",
            "catchup": "all",
            "catchup_window": "30d",
        },
    },
}


class Reader:
    """Somebody who follows a page on a host, with a server of their own."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        given = conninfo_to_dict(dsn)
        self.variables = {
            "PGHOST": str(given["host"]),
            "PGPORT": str(given.get("port") or 5432),
            "PGUSER": str(given["user"]),
        }

    def follow(self, page: str, *blocks: str) -> str:
        """Execute blocks of a page, and return what they print."""
        printed = ""
        for block in blocks:
            done = self.shell(commands(page, block))
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            assert "WARNING:" not in done.stderr, (block, done.stderr)
            printed += done.stdout
        return printed

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return shell(
            script, self.folder, self.folder / "bin", Path(sys.executable).parent, **self.variables
        )

    def rows(self, query: str, database: str = "app", user: str | None = None) -> list[Any]:
        given: dict[str, Any] = {"dbname": database, **({"user": user} if user else {})}
        with psycopg.connect(
            make_conninfo(self.dsn, **given), autocommit=True, row_factory=namedtuple_row
        ) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []


def a_reader(folder: Path) -> Iterator[Reader]:
    """Yield a reader with a new server and a project."""
    (folder / "jobs.py").write_text(JOBS)
    (folder / "schedules.yaml").write_text(json.dumps(SCHEDULE))
    server = folder / "server"
    server.mkdir()
    try:
        with embedded.running(server / "schedules.yaml") as dsn:
            yield Reader(folder, dsn)
    finally:
        embedded.discard(server / "schedules.yaml")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    yield from a_reader(tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    yield from a_reader(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def installed(reader: Reader) -> Reader:
    """A reader who has followed docs/database.md up to the first runs."""
    printed = reader.follow("database.md", "create", "migrate", "roles", "grants", "use")
    assert "applied 0001_schema" in printed
    return reader


DENIED = psycopg.errors.InsufficientPrivilege


def test_each_login_can_do_its_task_and_nothing_else(installed: Reader) -> None:
    [run] = installed.rows("select job_type, status, payload from yamlsched.job_runs")
    assert (run.job_type, run.status, run.payload) == ("report", "succeeded", {"week": 3})

    for user, allowed, denied in (
        ("app_web", "select yamlsched.enqueue('nightly')", "select from yamlsched.job_runs"),
        (
            "app_monitor",
            "select from yamlsched.job_health",
            "update yamlsched.job_runs set payload = '{}'",
        ),
        ("app_monitor", "select from yamlsched.job_runs", "select yamlsched.enqueue('nightly')"),
        (
            "app_worker",
            "update yamlsched.job_definitions set tags = tags",
            "create table yamlsched.mine ()",
        ),
        (
            "app_deploy",
            "create table yamlsched.later (); drop table yamlsched.later",
            "create table public.mine ()",
        ),
    ):
        installed.rows(allowed, user=user)
        if user == "app_deploy" and installed.rows("show server_version_num")[0][0] < "150000":
            continue  # there, every login may create tables in the schema public
        with pytest.raises(DENIED):
            installed.rows(denied, user=user)
    # a later migration, and the script after it, work for the login that migrates
    installed.follow("database.md", "migrate", "roles")


def test_an_administrator_who_is_no_superuser_can_follow_the_page(tmp_path: Path) -> None:
    for reader in a_reader(tmp_path):
        reader.rows("create role administrator login createdb createrole", "postgres")
        reader.variables["PGUSER"] = "administrator"

        reader.follow(
            "database.md",
            "create",
            "managed",
            "migrate",
            "roles",
            "grants",
            "use",
            "migrate",
            "roles",
        )

        [run] = reader.rows("select status from yamlsched.job_runs")
        assert run.status == "succeeded"


def test_nothing_is_created_outside_of_the_schema(installed: Reader) -> None:
    outside = installed.rows(
        "select c.oid::regclass from pg_class c where c.relnamespace not in ('yamlsched'::regnamespace, "
        "'pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace)"
    )
    assert outside == []


def test_a_backup_that_is_made_while_a_run_is_executed_is_restored(installed: Reader) -> None:
    # given a backup, made while a worker executes a run; then work goes on, and a night passes
    identity = installed.rows("select identity from yamlsched.database_identity")
    [row] = installed.rows("select run_id from yamlsched.enqueue('waits')")
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "yamlsched",
            "work",
            "--dsn",
            make_conninfo(installed.dsn, dbname="app", user="app_worker"),
        ],
        cwd=installed.folder,
    )
    try:
        started = installed.folder / "started"
        while not started.exists():
            assert worker.poll() is None
        before = installed.rows("select count(*) as n from yamlsched.job_runs")[0].n
        installed.follow("backup.md", "dump", "dump-schema")
        (installed.folder / "go").touch()
        assert worker.wait() == 0
    finally:
        worker.kill()
        worker.wait()
    installed.rows("select yamlsched.enqueue('report')")

    # when it is restored
    installed.follow("backup.md", "restore", "restore-roles")
    restored = "app_restored"
    installed.rows(
        "update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'; "
        "update yamlsched.job_definitions set next_slot_at = date_trunc('day', now()) - interval '22 hours', "
        "last_slot_at = null, effective_from = date_trunc('day', now()) - interval '30 hours' "
        "where job_type = 'nightly'",
        restored,
    )
    printed = installed.follow("backup.md", "review")

    # then it has what the backup had, and nothing is executed before jobs are resumed
    assert f"{row.run_id}  " in printed
    assert installed.rows("select identity from yamlsched.database_identity", restored) == identity
    counts = "select count(*) filter (where scheduled_for is null) as n from yamlsched.job_runs"
    assert installed.rows(counts, restored)[0].n == before
    held = installed.shell('YAMLSCHED_DSN="dbname=app_restored user=app_worker" yamlsched tick')
    assert held.returncode == 0, held
    status = f"select status, attempts from yamlsched.job_runs where id = {row.run_id}"
    assert installed.rows(status, restored) == [
        ("failed", 1)
    ]  # it has lost its worker, and waits for its job

    # and then what ran is executed again, as a second attempt, and the slot that was missed has its run
    installed.follow("backup.md", "resume")
    assert installed.rows(status, restored) == [("succeeded", 2)]
    nightly = "select status from yamlsched.job_runs where job_type = 'nightly' and scheduled_for is not null"
    assert {each.status for each in installed.rows(nightly, restored)} == {"succeeded"}
    failure = installed.rows(
        f"select error from yamlsched.job_failures where run_id = {row.run_id}", restored
    )
    assert ["lost its worker" in each.error for each in failure] == [True]

    # and a copy beside it gets another identity
    installed.follow("backup.md", "copy")
    copied = installed.rows("select identity from yamlsched.database_identity", "app_staging")
    assert copied != identity
    assert len(copied) == 1


def test_a_backup_of_the_whole_database_is_restored_with_roles_and_privileges(
    installed: Reader,
) -> None:
    installed.follow("backup.md", "dump")
    done = installed.shell(
        "createdb --template=template0 whole && pg_restore --exit-on-error --dbname=whole app.dump"
    )
    assert done.returncode == 0, done
    worker = installed.shell('yamlsched doctor --dsn "dbname=whole user=app_worker"')
    assert worker.returncode == 0, worker


def test_a_database_is_moved_to_another_server(installed: Reader, other_server: Reader) -> None:
    # given what the page says: nothing runs, and the logins exist on the new server
    assert installed.follow("backup.md", "moved-nothing-runs") == ""
    identity = installed.rows("select identity from yamlsched.database_identity")
    runs = installed.rows("select id, status, idempotency_key from yamlsched.job_runs order by id")
    installed.follow("backup.md", "moved-dump")
    (other_server.folder / "moved.dump").write_bytes((installed.folder / "moved.dump").read_bytes())
    other_server.rows("create role app_worker login", "postgres")

    other_server.follow("backup.md", "moved-restore")

    # then it is the same history, which continues there, and a forgotten host fails and says why
    try:
        assert other_server.rows("select identity from yamlsched.database_identity") == identity
        assert (
            other_server.rows(
                "select id, status, idempotency_key from yamlsched.job_runs order by id"
            )
            == runs
        )
        tick = other_server.shell('yamlsched tick --dsn "dbname=app user=app_worker"')
        assert tick.returncode == 0, tick
        forgotten = installed.shell('yamlsched tick --dsn "dbname=app user=app_worker"')
        said = 'yamlsched: the database has no tables of yamlsched yet: run "yamlsched migrate"\n'
        assert (forgotten.returncode, forgotten.stderr) == (3, said)
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            installed.rows("select yamlsched.enqueue('report')", user="app_web")
    finally:
        installed.rows("alter schema yamlsched_moved rename to yamlsched")


def test_everything_is_removed(installed: Reader) -> None:
    # given a crontab with other lines, and a view that depends on the tables
    programs = installed.folder / "bin"
    programs.mkdir()
    crontab = '#!/bin/sh\nif [ "$1" = -l ]; then cat tab; else cat > new && mv new tab; fi\n'
    (programs / "crontab").write_text(crontab)
    (programs / "crontab").chmod(0o755)
    (installed.folder / "tab").write_text(
        "0 1 * * * backup\n* * * * * cd /srv/app && yamlsched tick\n"
    )
    installed.rows("create view public.mine as select id from yamlsched.job_runs")
    for database in ("app_restored", "app_staging", "whole"):
        installed.rows(f'drop database if exists "{database}"')

    printed = installed.follow("database.md", "crontab", "inspect", "remove")

    assert " mine\n" in printed
    assert (installed.folder / "tab").read_text() == "0 1 * * * backup\n"
    left = installed.rows(
        "select rolname::text as name from pg_roles where rolname like 'yamlsched\\_%' union all "
        "select nspname::text from pg_namespace where nspname like 'yamlsched%' union all "
        "select 'default privileges' from pg_default_acl"
    )
    assert left == []
    assert "yamlsched_" not in str(
        installed.rows("select datacl from pg_database where datname = 'app'")
    )
