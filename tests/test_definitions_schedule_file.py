"""How schedules.yaml is read: a regular file, of 10 MB at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from yamlsched.cli import cli
from yamlsched.definitions import schedule_file
from yamlsched.definitions.load import load
from yamlsched.errors import EnvironmentFailed

FILE = "version: 1\njobs: {}\nx-secret: {hunter2\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link to a device", "nothing", "socket name"])
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
def test_a_file_of_ten_million_bytes_is_read_and_not_one_byte_more(tmp_path: Path, more: int, codes: list[str]):
    file = tmp_path / "schedules.yaml"
    start = b"version: 1\njobs: {}\n#"
    file.write_bytes(start + b"x" * (schedule_file.MAX_FILE_BYTES + more - len(start)))

    data = schedule_file.read(file)

    assert len(data) == schedule_file.MAX_FILE_BYTES + min(more, 1)
    assert [one.code for one in load(data, str(file), None).diagnostics] == codes


def test_validate_shows_no_line_of_a_linked_file_in_another_directory(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text(FILE)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "schedules.yaml").symlink_to(secret)
    (folder / "..data").mkdir()
    (folder / "..data" / "schedules.yaml").write_text(FILE)
    (folder / "mounted.yaml").symlink_to("..data/schedules.yaml")

    outputs = [
        CliRunner().invoke(cli, ["validate", str(folder / name)], standalone_mode=False).output
        for name in ("schedules.yaml", "mounted.yaml")
    ]

    assert [("error[YS001]" in output, "hunter2" in output) for output in outputs] == [(True, False), (True, True)]
