"""A dump has everything and no command, and a restore loads all of it or changes nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.embedded_database import answer, carry_out
from yamlsched.errors import Refused
from yamlsched.extras import embedded
from yamlsched.extras.embedded import binaries, dump

pytestmark = pytest.mark.story
SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")


def test_a_dump_omits_only_settings_in_its_header_that_older_servers_do_not_support():
    lines = [
        b"\\restrict Abc123\n",
        b"SET statement_timeout = 0;\n",
        b"SET transaction_timeout = 0;\n",
        b"-- Name: t; Type: TABLE\n",
        b"COPY t (x) FROM stdin;\n",
        b"SET transaction_timeout = 0;\n",
        b"\\restrict Abc123\n",
        b"\\unrestrict other\n",
        b"\\unrestrict Abc123\n",
    ]
    assert list(dump.portable(lines)) == [*lines[:2], *lines[3:]]


CONTENT = (
    "create schema app",
    "create table app.letters (id bigint generated always as identity primary key, text text not null)",
    "create view app.shown as select text from app.letters",
    "create function app.twice(text) returns text language sql as $$ select $1 || $1 $$",
    r"insert into app.letters (text) values ('SET transaction_timeout = 0;'), (E'\\restrict x'), (E'ü\n\t\\'), ('')",
)


def everything(dsn: str) -> object:
    return answer(
        dsn,
        "select jsonb_agg(l order by id)::text || app.twice('a') || count(*) from app.letters as l",
    )


def test_a_command_that_a_hostile_server_hid_in_a_dump_is_not_executed_by_restore(
    project, tmp_path
):
    # given a dump with a command behind a line break that a hostile server put into a name
    touched, file = tmp_path / "touched", tmp_path / "hostile.sql"
    lines = [
        b"\\restrict Abc123\n",
        b"-- Name: t\n",
        f"\\! touch {touched}\n".encode(),
        b"\\unrestrict Abc123\n",
    ]
    file.write_bytes(b"".join(dump.portable(lines)))

    with embedded.running(project) as dsn, pytest.raises(Refused, match="restricted"):
        dump.restore(dsn, binaries.find_binaries(False), file, clean=True)

    assert not touched.exists()


@pytest.mark.skipif(not SYSTEM_15.exists(), reason="there is no PostgreSQL 15 here")
def test_a_dump_loads_into_postgresql_15_with_its_psql(project, empty, monkeypatch):
    file = project.parent / "dump.sql"
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        dump.dump_to_file(dsn, embedded.find_binaries(False), file)
        content = everything(dsn)

    monkeypatch.setenv("YAMLSCHED_PG_BIN", str(SYSTEM_15))
    with embedded.running(empty) as dsn:
        assert str(answer(dsn, "show server_version")).startswith("15.")
        words = [SYSTEM_15 / "psql", "-X", "-v", "ON_ERROR_STOP=1", "-q", "-f", file, dsn]
        loaded = subprocess.run(words, capture_output=True, text=True)
        assert (loaded.returncode, loaded.stderr) == (0, "")
        assert everything(dsn) == content


def without_key(text: str) -> str:
    """Return a dump without its random key."""
    return re.sub(r"(?m)^(\\(?:un)?restrict) \w+$", r"\1", text)


def test_restore_restores_the_complete_content_and_overwrites_data_only_with_clean(project):
    first, second = project.parent / "first.sql", project.parent / "second.sql"
    tools = embedded.find_binaries(False)
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        dump.dump_to_file(dsn, tools, first)
        carry_out(dsn, "create table more as select 1 as number")

        with pytest.raises(Refused, match=r"holds data, in app.letters, public.more: .*--clean"):
            dump.restore(dsn, tools, first, clean=False)
        dump.restore(dsn, tools, first, clean=True)

        assert answer(dsn, "select to_regclass('more')") is None
        dump.dump_to_file(dsn, tools, second)
    assert without_key(second.read_text()) == without_key(first.read_text())


def test_a_dump_can_be_read_by_its_owner_only_and_follows_no_link(project):
    file, other = project.parent / "dump.sql", project.parent / "other"
    other.write_text("unchanged")
    (project.parent / "dump.sql.part").symlink_to(other)

    with embedded.running(project) as dsn:
        dump.dump_to_file(dsn, embedded.find_binaries(False), file)

    assert (file.stat().st_mode & 0o777, file.is_symlink(), other.read_text()) == (
        0o600,
        False,
        "unchanged",
    )


def test_a_dump_that_does_not_load_changes_nothing(project):
    bad = project.parent / "bad.sql"
    bad.write_text("create table half ();\nselect 1 / 0;\n")
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        before = everything(dsn)

        with pytest.raises(
            Refused,
            match=r"bad\.sql was not loaded, and the database is unchanged: .*division by zero",
        ):
            dump.restore(dsn, embedded.find_binaries(False), bad, clean=True)

        assert everything(dsn) == before
        assert answer(dsn, "select to_regclass('half')") is None


def test_dump_and_restore_as_verbs(verb, project):
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        assert verb("dump", "--output", "out.sql").returncode == 0
        assert without_key(verb("dump").stdout) == without_key(
            (project.parent / "out.sql").read_text()
        )

        refused = verb("restore", "out.sql")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "holds data, in app.letters" in refused.stderr
        assert verb("restore", "out.sql", "--yes").returncode == 0
    assert verb("restore", "no_such_file.sql").returncode == 2
    assert verb("dump", "--output", "no/such/folder.sql").returncode == 3
