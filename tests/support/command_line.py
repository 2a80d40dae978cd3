"""The command line, in this process and in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from support.project import ForkServer
from yamlsched.cli import main

ROOT = Path(__file__).resolve().parents[2]


def yamlsched(
    *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, in another process: a fork, which spares the start of Python."""
    server = ForkServer.of_all()
    with TemporaryDirectory() as name:
        out, err = Path(name, "out"), Path(name, "err")
        pid = server.start(
            environment, cwd, as_program=True, argv=arguments, stdout=str(out), stderr=str(err)
        )
        code = server.code(pid, timeout=120)
        if code is None:
            server.kill([pid])
        assert code is not None, f"still running: {err.read_text('utf-8')}"
        return subprocess.CompletedProcess(
            arguments, code, out.read_text("utf-8"), err.read_text("utf-8")
        )


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., CommandResult]


def command_line(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Any
) -> Cli:
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
