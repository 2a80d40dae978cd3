"""Standard output that cannot be written, and Ctrl-C: one line, and an exit code that is no finding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = [["--help"], ["validate", "--format", "json"]]
SCHEDULE = (
    'version: 1\njobs:\n  a: {cron: "0 2 * * *", command: ["true"]}\n  b: {cron: "0 2 * * *"}\n'
)
COMMAND = [sys.executable, "-m", "yamlsched"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(SCHEDULE.replace("b: {", 'b: {command: ["true"], '))
    return tmp_path


@pytest.mark.story
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_full_disk_under_standard_output_is_one_line_and_an_environment_failure(
    words: list[str], folder: Path
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *words], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True
        )

    says = "yamlsched: standard output cannot be written: No space left on device"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, says)
    assert "Traceback" not in done.stderr


@pytest.mark.story
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_reader_that_has_exited_is_no_finding(words: list[str], folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, *words], cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


def test_a_full_disk_is_reported_as_json_with_json_logs(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "--log-format", "json", "explain"]
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 3
    assert done.stderr.startswith("{")


@pytest.mark.parametrize("module", ["yamlsched.cli", "click", "yamlsched.schedule.load"])
def test_an_interrupt_while_a_verb_is_imported_prints_one_line(module: str, folder: Path) -> None:
    script = (
        "import sys, os, signal, runpy\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['yamlsched', 'validate']\n"
        "runpy.run_module('yamlsched', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr.strip()) == (130, "Aborted.")
