"""A database that hides rows of the tables by policies, or allows too few connections: commands say so."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support.command_line import yamlsched
from yamlsched.db import connect, migrations
from yamlsched.db.query import sql_folder

pytestmark = pytest.mark.story
Db = psycopg.Connection[Any]
FILE = "version: 1\njobs: {nap: {command: [env]}}\n"


@pytest.fixture
def login(own_dsn: str) -> Iterator[tuple[str, str]]:
    """Yield a login with the role of a worker, and its DSN."""
    name = f"login_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(own_dsn, autocommit=True) as admin:
        admin.execute((sql_folder() / "roles.sql").read_bytes())
        admin.execute(f"create role {name} login password 'x' in role yamlsched_worker".encode())
        yield name, make_conninfo(own_dsn, user=name, password="x")
        admin.execute(f"drop role {name}".encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(FILE)
    return tmp_path


def hide(dsn: str, *tables: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        for table in tables:
            admin.execute(f"alter table yamlsched.{table} enable row level security".encode())


@pytest.mark.parametrize(
    "tables", [["job_runs"], ["hosts", "job_runs", "migrations", "namespaces"]]
)
def test_every_command_says_that_policies_hide_the_tables(
    own_dsn: str, login: tuple[str, str], folder: Path, tables: list[str]
) -> None:
    _, dsn = login
    assert yamlsched("sync", cwd=folder, YAMLSCHED_DSN=dsn).returncode == 0
    hide(own_dsn, *tables)

    for words in (
        ["tick"],
        ["sync"],
        ["work"],
        ["runs"],
        ["status", "--check"],
        ["doctor"],
    ):
        answer = yamlsched(*words, cwd=folder, YAMLSCHED_DSN=dsn)

        assert answer.returncode == 3, f"{words}: {answer.stdout} {answer.stderr}"
        assert "would be affected by row-level security policy for table" in answer.stderr
        assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("of", ["role", "database"])
def test_a_limit_of_connections_that_is_too_low_is_refused_with_the_number_that_is_needed(
    own_dsn: str, login: tuple[str, str], folder: Path, of: str
) -> None:
    name, dsn = login
    assert yamlsched("sync", cwd=folder, YAMLSCHED_DSN=dsn).returncode == 0
    with connect(own_dsn) as admin, connect(dsn) as known:
        what = name if of == "role" else admin.info.dbname
        admin.execute(
            f"alter {of} {what} connection limit {migrations.MIN_CONNECTIONS - 1}".encode()
        )
        limited = make_conninfo(dsn)

        if of == "role":
            admin.execute("select yamlsched.enqueue('nap')")
            for words in (["tick"], ["work"], ["work", "--loop"]):
                answer = yamlsched(*words, cwd=folder, YAMLSCHED_DSN=limited)
                said = (
                    f'role "{name}" may have 2 connections, and a tick or worker needs at least 3'
                )
                assert answer.returncode == 3, f"{words}: {answer.stdout} {answer.stderr}"
                assert said in answer.stderr
            answer = yamlsched("doctor", cwd=folder, YAMLSCHED_DSN=limited)
            assert answer.returncode == 1
            assert said in answer.stdout
        assert f'{of} "{what}" may have 2 connections' in str(migrations.few_connections(known))
        assert migrations.few_connections(admin) is None  # a superuser has no limit
        admin.execute(f"alter {of} {what} connection limit -1".encode())
