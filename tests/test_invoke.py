"""``yamlsched invoke``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import yamlsched

FILE = """version: 1
jobs:
  add: {handler: work.add, payload: {a: 1, b: 2}}
  fan: {handler: work.fan}
  fail: {handler: work.fail}
  needs: {handler: work.needs}
"""
HANDLERS = """
def add(a, b): return {"sum": a + b}
def fan(run): run.enqueue("add", {"a": 5}, key="add:5")
def fail(): raise ValueError("no route to host")
def needs(a, run): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(FILE)
    (tmp_path / "work.py").write_text(HANDLERS)
    return tmp_path


def test_invoke_merges_the_given_payload_over_that_of_the_file(project: Path, own_dsn: str) -> None:
    done = yamlsched("invoke", "add", "--payload", '{"b": 40}', "--dsn", own_dsn, cwd=project)
    assert (done.returncode, done.stdout) == (0, '{"sum": 41}\n')


def test_invoke_shows_what_would_be_enqueued(project: Path, own_dsn: str) -> None:
    done = yamlsched("invoke", "fan", "--dsn", own_dsn, cwd=project)
    assert (done.returncode, done.stdout) == (0, "null\n")
    assert 'would enqueue add {"a": 5} key=add:5' in done.stderr


def test_invoke_shows_the_handler_s_traceback(project: Path, own_dsn: str) -> None:
    done = yamlsched("invoke", "fail", "--dsn", own_dsn, cwd=project)
    assert done.returncode == 1
    assert "ValueError: no route to host" in done.stderr


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["ad"], 1, 'no valid job "ad" in schedules.yaml. Did you mean "add"?'),
        (["add", "--payload", "{"], 2, "invalid JSON where it ends"),
        (["add", "--payload", "[]"], 2, "not a JSON object"),
        (["add", "--payload", '{"c": 3}'], 1, 'does not fit work.add: it has no parameter "c". It takes: a, b'),
        (["needs"], 1, 'does not fit work.needs: "a" is missing. It takes: a'),
    ],
)
def test_invoke_refuses_what_cannot_be_called(
    project: Path, own_dsn: str, arguments: list[str], code: int, says: str
) -> None:
    done = yamlsched("invoke", *arguments, "--dsn", own_dsn, cwd=project)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
