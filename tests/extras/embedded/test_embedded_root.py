"""As root: the embedded server runs as another user, and no user can lead root out of the folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.embedded_database import a_project, answer, carry_out, pid_of_server
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras import embedded
from yamlsched.extras.embedded import binaries, location

pytestmark = pytest.mark.story
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


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

    assert said.startswith(
        f"EnvironmentFailed: cannot use {empty.parent}/.yamlsched for the embedded database"
    )


@pytest.fixture
def system_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
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
        assert (
            f"cannot reach {closed}/.yamlsched: the data is stored in {data.parent}\n"
            in capfd.readouterr().err
        )

    with embedded.running(file) as dsn:
        assert answer(dsn, "select count(*) from kept") == 0
        assert capfd.readouterr().err == ""
    assert closed.stat().st_mode & 0o777 == 0o700


@only_root
def test_binaries_that_the_servers_user_cannot_reach_are_copied_once(
    project, system_home, monkeypatch
):
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
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
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

    with pytest.raises(
        EnvironmentFailed, match="that yamlsched did not create, and root does not follow it"
    ):
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
