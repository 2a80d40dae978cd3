"""A user without a name, as of a container that is started with a number: nothing fails because of that."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from yamlsched.act.runs import operator
from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.embedded.location import Account, require_name
from yamlsched.extras.scaffold.deploy import KINDS
from yamlsched.service.host import permit_folder


@pytest.fixture(autouse=True)
def nameless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_init_writes_a_project() -> None:
    result = CliRunner().invoke(cli, ["init"])

    assert (result.exit_code, Path("schedules.yaml").exists()) == (0, True), result.output


@pytest.mark.parametrize("kind", KINDS)
def test_init_writes_the_files_that_start_it(kind: str) -> None:
    result = CliRunner().invoke(cli, ["init", "--deploy", kind])

    assert (result.exit_code, bool(list(Path("deploy").iterdir()))) == (0, True), result.output
    if kind == "systemd":
        assert f"\nUser={os.getuid()}\n" in Path("deploy/yamlsched.service").read_text()


def test_actions_are_recorded_with_the_number() -> None:
    assert operator() == f"uid {os.getuid()}"


def test_without_a_home_directory_no_lock_files_are_created_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))

    with pytest.raises(
        EnvironmentFailed, match="set TMPDIR to a folder that this user may write to"
    ):
        permit_folder(Path("schedules.yaml"))

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("account", [None, Account(54_321, 54_321, "user 54321")])
def test_an_embedded_database_is_refused_with_what_to_do(account: Account | None) -> None:
    uid = os.geteuid() if account is None else account.uid

    with pytest.raises(
        EnvironmentFailed, match=f"by user {uid}, which has no name: .*set YAMLSCHED_DSN"
    ):
        require_name(account)
