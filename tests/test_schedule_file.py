"""How schedules.yaml is read: a regular file, of 4 MB at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.load import load

FILE = "version: 1\njobs: {}\nx-secret: {hunter2\n"


@pytest.mark.parametrize(
    "kind", ["pipe", "device", "directory", "link to a device", "nothing", "socket name"]
)
def test_anything_but_a_regular_file_is_rejected_immediately(tmp_path: Path, kind: str):
    file = tmp_path / "schedules.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "link to a device":
        file.symlink_to("/dev/zero")
    elif kind == "device":
        file = Path("/dev/zero")
    elif kind == "socket name":
        file = tmp_path / ("a" * 300)

    with pytest.raises(EnvironmentFailed, match="cannot be read"):
        schedule_file.read(file)


@pytest.mark.parametrize("more, codes", [(-1, []), (0, []), (1, ["YS013"]), (1_000_000, ["YS013"])])
def test_a_file_of_four_million_bytes_is_read_and_not_one_byte_more(
    tmp_path: Path, more: int, codes: list[str]
):
    file = tmp_path / "schedules.yaml"
    start = b"version: 1\njobs: {}\n#"
    file.write_bytes(start + b"x" * (schedule_file.MAX_FILE_BYTES + more - len(start)))

    data = schedule_file.read(file)

    assert len(data) == 4_000_000 + min(more, 1)
    assert [one.code for one in load(data, str(file), None).diagnostics] == codes


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A project with links to a secret outside, to git's own file, and to a file that is mounted beside it."""
    (tmp_path / "secret").write_text("ghp_hunter2")
    folder = tmp_path / "project"
    for name in (".git", "..data"):
        (folder / name).mkdir(parents=True)
    (folder / ".git" / "config").write_text("hunter2: [\n")
    (folder / "..data" / "schedules.yaml").write_text(FILE)
    (folder / "outside.yaml").symlink_to("../secret")
    (folder / "twice.yaml").symlink_to("outside.yaml")
    (folder / "git.yaml").symlink_to(".git/config")
    (folder / "mounted.yaml").symlink_to("..data/schedules.yaml")
    (folder / "good.yaml").write_text("version: 1\njobs: {}\n")
    return folder


@pytest.mark.parametrize("name", ["outside.yaml", "twice.yaml", "git.yaml"])
@pytest.mark.parametrize("output", ["text", "concise", "json", "github", "sarif"])
def test_validate_prints_nothing_of_a_linked_file_outside_of_the_directory(
    linked: Path, name: str, output: str
):
    result = CliRunner().invoke(
        cli, ["--format", output, "validate", str(linked / name)], standalone_mode=False
    )

    assert "hunter2" not in result.output
    assert isinstance(result.exception, EnvironmentFailed)
    assert "is a link to a file outside of its directory" in str(result.exception)
    assert "hunter2" not in str(result.exception)


@pytest.mark.parametrize("name", ["outside.yaml", "twice.yaml", "git.yaml"])
@pytest.mark.parametrize("is_base", [True, False])
def test_diff_prints_nothing_of_a_linked_file_outside_of_the_directory(
    linked: Path, name: str, is_base: bool
):
    good, link = str(linked / "good.yaml"), str(linked / name)

    result = CliRunner().invoke(
        cli, ["diff", *([link, good] if is_base else [good, link])], standalone_mode=False
    )

    assert isinstance(result.exception, EnvironmentFailed)
    assert "hunter2" not in result.output + str(result.exception)


def test_validate_reads_a_link_to_a_file_in_its_own_directory(linked: Path):
    result = CliRunner().invoke(
        cli, ["validate", str(linked / "mounted.yaml")], standalone_mode=False
    )

    assert "error[YS001]" in result.output
    assert "hunter2" in result.output
