"""Projects that have never used the embedded database, or have, and other processes that use it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.embedded_database import a_project
from yamlsched.extras import embedded

A_USER = """
import sys
from pathlib import Path
from yamlsched.extras import embedded
with embedded.running(Path(sys.argv[1])) as dsn:
    print(dsn, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def empty() -> Iterator[Path]:
    """The schedules.yaml of a project that has never used the embedded database."""
    with a_project() as file:
        yield file


@pytest.fixture(scope="session")
def used_once() -> Iterator[Path]:
    with a_project() as file:
        with embedded.running(file):
            pass
        yield file


@pytest.fixture
def project(used_once: Path) -> Iterator[Path]:
    """The schedules.yaml of a project with a stopped embedded database; a copy is faster than initdb."""
    with a_project() as file:
        subprocess.run(["cp", "-a", used_once.parent / ".yamlsched", file.parent], check=True)
        yield file


@pytest.fixture
def user() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start another process that uses the database, until its stdin ends."""
    started: list[subprocess.Popen[str]] = []

    def start(file: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", A_USER, str(file)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def verb(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "yamlsched", "--file", str(project), "db", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=project.parent)

    return run
