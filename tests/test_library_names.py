"""A handler in a module with the name of a library's: an error of the checks, and of the call."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psycopg
import pytest

from support.command_line import yamlsched
from yamlsched.handler.calls import resolve
from yamlsched.schedule.lookup import OWN_PACKAGES

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


def work(folder: Path, dsn: str) -> tuple[str, str]:
    """Run the job once; return how that ended."""
    for words in (("sync",), ("enqueue", "send"), ("work",)):
        yamlsched(*words, "--dsn", dsn, cwd=folder)
    with psycopg.connect(dsn) as db:
        query = "select status, coalesce(last_error, result::text) from yamlsched.job_runs"
        [row] = db.execute(query).fetchall()
    return row


@pytest.mark.story
@pytest.mark.parametrize("verb", ["validate", "sync", "doctor"])
def test_the_checks_name_the_module_of_python(folder: Path, dsn: str, verb: str) -> None:
    a_project(folder, "email")

    done = yamlsched(verb, *(() if verb == "validate" else ("--dsn", dsn)), cwd=folder)

    assert done.returncode == 1
    text = " ".join((done.stdout + done.stderr).split())
    assert "email is also a module of Python, which may be imported instead of email.py" in text


@pytest.mark.story
@pytest.mark.parametrize("module", ["email", "time", "yaml"])
def test_a_call_ends_with_the_places_of_both_modules(folder: Path, module: str) -> None:
    a_project(folder, module)

    done = yamlsched("invoke", "send", cwd=folder)

    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert f"{module} is already loaded from " in text
    assert f"and not from {folder / 'lib' / module}.py: rename the latter" in text


@pytest.mark.story
def test_a_worker_loads_no_package_that_the_checks_do_not_know(folder: Path, dsn: str) -> None:
    names = "sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    a_project(folder, "jobs", body=f"return {names}")

    status, loaded = work(folder, dsn)

    assert status == "succeeded"
    names = set(loaded.strip('[]"').replace('"', "").split(", "))
    compiled = {name for name in names if name.startswith(("_", "cython_runtime"))}
    assert names - compiled - {"jobs"} <= OWN_PACKAGES


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
