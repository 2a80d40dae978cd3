"""``yamlsched completion``: verbs, options, jobs and tags are completed in a shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Cli, command_line

FILE = """
version: 1
jobs:
  cleanup_nightly: {cron: "30 3 * * *", handler: a.b, tags: [billing, nightly]}
  cleanup_weekly: {cron: "30 3 * * 0", handler: a.b, tags: [weekly]}
  report: {handler: a.b}
"""
ASK = """
compopt() { :; }
eval "$(yamlsched completion bash)"
COMP_WORDS=(%s) COMP_CWORD=%d
_yamlsched_completion yamlsched
printf '%%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(FILE)
    (tmp_path / "broken.yaml").write_bytes(b"jobs: {a: [\xff")
    (tmp_path / "odd.yaml").write_text("jobs: [a, b]")
    return tmp_path


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return command_line("", monkeypatch, capsys, folder)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["yamlsched", "wh"], ["why"]),
        (["yamlsched", "why", "clean"], ["cleanup_nightly", "cleanup_weekly"]),
        (["yamlsched", "pause", "report", "cleanup_n"], ["cleanup_nightly"]),
        (["yamlsched", "runs", "--job", "r"], ["report"]),
        (["yamlsched", "pause", "--tag", ""], ["billing", "nightly", "weekly"]),
        (["yamlsched", "retry", "--tag", "w"], ["weekly"]),
        (["yamlsched", "runs", "--status", "de"], ["dead"]),
        (["yamlsched", "--file", "missing.yaml", "why", ""], []),
        (["yamlsched", "why", "--file", "broken.yaml", ""], []),
        (["yamlsched", "why", "--file", "odd.yaml", ""], []),
    ],
    ids=" ".join,
)
def test_the_program_answers_the_function_of_the_shell(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv("_YAMLSCHED_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", shlex.join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))

    done = cli()

    assert done.out.split() == [f"plain,{word}" for word in expected]
    assert done.err == ""


def test_bash_completes_by_its_function(folder: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", ASK % ("yamlsched why clean", 2)],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["cleanup_nightly", "cleanup_weekly"]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_that_is_installed_has_no_syntax_error(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    assert "_YAMLSCHED_COMPLETE" in script
    if installed := shutil.which(shell):
        subprocess.run([installed, "-n"], input=script, text=True, check=True)
