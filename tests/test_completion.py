"""``yamlsched completion``: verbs, options, jobs and tags are completed in a shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of ``words``."""
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ASK % (" ".join(map(shlex.quote, words)), len(words) - 1)
    done = subprocess.run(
        [bash, "-c", script],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


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
def test_bash_completes(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    (tmp_path / "schedules.yaml").write_text(FILE)
    (tmp_path / "broken.yaml").write_bytes(b"jobs: {a: [\xff")
    (tmp_path / "odd.yaml").write_text("jobs: [a, b]")

    assert completed(tmp_path, *words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_that_is_installed_has_no_syntax_error(shell: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "yamlsched", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "_YAMLSCHED_COMPLETE" in script
    if installed := shutil.which(shell):
        subprocess.run([installed, "-n"], input=script, text=True, check=True)
