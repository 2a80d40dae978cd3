"""Databases whose encoding does not have every character: what users did not write themselves stops no command."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support.command_line import yamlsched
from support.project import TESTS
from yamlsched.db import connect, migrations

pytestmark = pytest.mark.story
SUBJECT = "Добавлено: 価格 5 €"
FILE = 'version: 1\njobs: {nap: {command: [env], description: "%s", payload: {text: "%s"}}}\n'


@pytest.fixture(params=["LATIN1", "EUC_JP", "KOI8R", "WIN1252"])
def encoded_dsn(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        provider = "locale_provider libc" if admin.info.server_version >= 150_000 else ""
        how = (
            f"template template0 encoding '{request.param}' lc_collate 'C' lc_ctype 'C' {provider}"
        )
        admin.execute(f"create database {name} {how}".encode())
        dsn = make_conninfo(server, dbname=name)
        with connect(dsn) as connection:
            migrations.migrate(connection)
        yield dsn
        admin.execute(f"drop database {name} with (force)".encode())


def a_repository(folder: Path, description: str = "plain", text: str = "plain") -> None:
    folder.mkdir()
    (folder / "schedules.yaml").write_text(FILE % (description, text))
    identity = {
        f"GIT_{who}_{what}": f"Mária {who} €"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", SUBJECT]):
        subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **identity})


def test_what_git_and_the_host_name_are_is_escaped_and_no_command_fails(
    encoded_dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "Задачи €"
    a_repository(folder)
    environment = {
        "YAMLSCHED_DSN": encoded_dsn,
        "PYTHONPATH": str(TESTS),
        "TEST_FOLDER": str(folder),
    }

    for words in (
        ["sync"],
        ["sync"],
        ["enqueue", "nap"],
        ["tick"],
        ["work"],
        ["runs"],
        ["status", "--check"],
        ["log"],
    ):
        answer = yamlsched(*words, cwd=folder, **environment)
        assert answer.returncode == 0, f"{words}: {answer.stdout} {answer.stderr}"
    with psycopg.connect(encoded_dsn) as connection:
        [(subject,)] = connection.execute("select subject from yamlsched.edits").fetchall()
        assert (
            subject.encode().decode("unicode_escape" if subject.isascii() else "utf-8") is not None
        )
        assert subject.startswith(("\\u0414", "Добавлено"))
        assert connection.execute("select status from yamlsched.job_runs").fetchall() == [
            ("succeeded",)
        ]


@pytest.mark.parametrize("key", ["description", "payload"])
def test_a_character_of_the_file_that_the_database_lacks_is_refused_with_its_job_and_key(
    encoded_dsn: str, tmp_path: Path, key: str
) -> None:
    folder = tmp_path / "project"
    a_repository(folder, **{{"description": "description", "payload": "text"}[key]: "an emoji 🦊"})
    environment = {"YAMLSCHED_DSN": encoded_dsn, "PYTHONPATH": str(TESTS)}

    for words, code in ((["sync"], (1, 3)), (["tick"], (1,))):
        answer = yamlsched(*words, cwd=folder, **environment)

        assert answer.returncode in code, answer.stderr
        said = answer.stdout + answer.stderr
        assert f'job "nap": {key} has the character "🦊", which a database with encoding ' in said
        assert "Traceback" not in said


def test_a_payload_with_such_a_character_is_refused_and_the_message_names_it(
    encoded_dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    a_repository(folder)
    environment = {"YAMLSCHED_DSN": encoded_dsn, "PYTHONPATH": str(TESTS)}
    assert yamlsched("sync", cwd=folder, **environment).returncode == 0

    answer = yamlsched("enqueue", "nap", "--payload", '{"text": "🦊"}', cwd=folder, **environment)

    assert answer.returncode != 0
    assert 'payload or key of job "nap" has a character that the encoding' in answer.stderr
    assert "Traceback" not in answer.stderr
