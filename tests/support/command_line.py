"""The command line, in this process and in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from yamlsched.cli import main

ROOT = Path(__file__).resolve().parents[2]


def yamlsched(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, in another process."""
    return subprocess.run(
        [sys.executable, "-m", "yamlsched", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., CommandResult]


def command_line(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Any) -> Cli:
    """Return a function that runs a command line in an empty ``folder`` against ``dsn``."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("YAMLSCHED_DSN", dsn)

    def cli(*arguments: object) -> CommandResult:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["yamlsched", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), captured.out, captured.err)

    return cli
