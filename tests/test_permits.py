"""The folder of lock files by which the workers of a host share their concurrency limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.project import TESTS, Project, a_project
from yamlsched.errors import EnvironmentFailed
from yamlsched.service.host import permit_folder
from yamlsched.worker.permits import ConcurrencyPermits


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A temporary directory and a home directory, both empty."""
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("HOME", str(home))
    return temporary, home


def test_all_processes_of_a_file_share_one_folder_that_others_cannot_read(
    places: tuple[Path, Path],
) -> None:
    temporary, _ = places

    folder = permit_folder(Path("schedules.yaml"))

    assert (
        folder
        == permit_folder(Path("schedules.yaml").absolute())
        != permit_folder(Path("other.yaml"))
    )
    assert folder.parent == temporary / f"yamlsched-{os.getuid()}"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}


def test_a_folder_of_another_user_with_this_name_does_not_stop_a_worker(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    temporary, home = places
    (temporary / f"yamlsched-{os.getuid()}").symlink_to(tmp_path)

    folder = permit_folder(Path("schedules.yaml"))

    assert folder.parent == home / ".cache" / "yamlsched"
    assert not list(tmp_path.glob("permits-*"))


@pytest.mark.parametrize("taken", ["symlink", "file"])
def test_the_error_for_unusable_folders_names_them_and_what_to_do(
    places: tuple[Path, Path], tmp_path: Path, taken: str
) -> None:
    temporary, home = places
    for path in (temporary / f"yamlsched-{os.getuid()}", home / ".cache"):
        path.symlink_to(tmp_path / "nowhere") if taken == "symlink" else path.touch()

    with pytest.raises(
        EnvironmentFailed, match="set TMPDIR to a folder that this user may write to"
    ) as error:
        permit_folder(Path("schedules.yaml"))

    assert str(temporary) in str(error.value)
    assert str(home) in str(error.value)


def test_permits_are_taken_again_after_the_folder_was_cleaned_up(tmp_path: Path) -> None:
    path = tmp_path / "permits" / "local"
    permits = ConcurrencyPermits(path, 3)
    assert permits.fill(2) == 2

    shutil.rmtree(path.parent)

    assert permits.fill(3) == 3
    permits.shrink(0)
    assert permits.fill(1) == 1
    assert path.exists()
    permits.shrink(0)


TAKE = """
import sys; from pathlib import Path; from yamlsched.worker.permits import ConcurrencyPermits
permits = ConcurrencyPermits(Path(sys.argv[1]), 3)
print(permits.fill(3), flush=True)
input()
"""


def test_no_more_permits_are_held_than_there_are_and_those_of_a_killed_process_are_free(
    tmp_path: Path,
) -> None:
    path = tmp_path / "local"
    permits = ConcurrencyPermits(path, 3)
    assert permits.fill(1) == 1

    command = [sys.executable, "-c", TAKE, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "2\n"
        assert permits.fill(3) == 1
        other.kill()
        other.wait()

    assert permits.fill(3) == 3
    permits.shrink(0)


def test_a_file_of_permits_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "local").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(EnvironmentFailed, match="local cannot be opened"):
        ConcurrencyPermits(tmp_path / "local", 3).fill(1)

    assert not (tmp_path / "elsewhere").exists()


# -- processes with an unusual environment


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


@pytest.mark.story
@pytest.mark.parametrize(
    ("verb", "closed"),
    [("work", ">&-"), ("work", "2>&-"), ("work", "<&-"), ("tick", ">&- 2>&- <&-")],
)
def test_a_worker_whose_standard_streams_are_closed_works(
    project: Project, verb: str, closed: str
) -> None:
    project.sync(prints={"lease": "1m", "backoff": {"policy": "fixed", "delay": "1s"}})
    [run] = project.enqueue("prints")
    command = f'exec "$@" {closed}'
    argv = [
        sys.executable,
        "-m",
        "yamlsched",
        verb,
        "--file",
        str(project.file),
        "--dsn",
        project.dsn,
    ]

    ended = subprocess.run(
        ["sh", "-c", command, "sh", *argv, "--path", str(TESTS)],
        env={**os.environ, "TEST_FOLDER": str(project.folder), "TMPDIR": str(project.folder)},
        timeout=60,
    )

    assert ended.returncode == 0
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_a_worker_without_a_folder_for_its_lock_files_exits_with_an_error(project: Project) -> None:
    project.sync(nothing={})
    project.enqueue("nothing")
    no_folder = (
        "import tempfile; tempfile._candidate_tempdir_list = lambda: []; tempfile.tempdir = None"
    )

    process = project.work(before=no_folder, code=3, TMPDIR="/proc/1/none", HOME="/proc/1/none")

    assert "Traceback" not in process.text
    assert "set TMPDIR to a folder that this user may write to" in process.text
