"""A handler in a module with the name of a library's: an error of the call."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.command_line import yamlsched
from yamlsched.handler.calls import resolve

SCHEDULE = """\
version: 1
paths: [lib]
defaults: {{max_attempts: 1}}
jobs:
  send: {{handler: {}.send}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def a_project(folder: Path, module: str, body: str = "return 'sent'") -> None:
    (folder / "schedules.yaml").write_text(SCHEDULE.format(module))
    (folder / "lib").mkdir()
    (folder / "lib" / f"{module}.py").write_text(f"import sys\ndef send(): {body}\n")


@pytest.mark.story
@pytest.mark.parametrize("module", ["email", "time", "yaml"])
def test_a_call_ends_with_the_places_of_both_modules(folder: Path, module: str) -> None:
    a_project(folder, module)

    done = yamlsched("invoke", "send", cwd=folder)

    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert f"{module} is already loaded from " in text
    assert f"and not from {folder / 'lib' / module}.py: rename the latter" in text


def test_a_handler_may_be_a_function_of_a_library_and_a_module_may_be_reached_by_a_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "linked_module_f7.py").write_text("def send(): ...\n")
    (folder / "link").symlink_to("real")
    monkeypatch.syspath_prepend(str(folder / "link"))
    assert resolve("linked_module_f7.send").__module__ == "linked_module_f7"
    monkeypatch.syspath_prepend(str(folder / "real"))

    assert resolve("linked_module_f7.send").__module__ == "linked_module_f7"
    assert resolve("os.path.join") is os.path.join
    assert resolve("time.time")
    assert resolve("click.echo")
    del sys.modules["linked_module_f7"]
