"""Projects with an embedded database, and processes that use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from support.project import is_alive, until
from yamlsched.extras import embedded

MEMORY = Path("/dev/shm")
BASE = (
    MEMORY if MEMORY.exists() and shutil.disk_usage(MEMORY).free > 1_000_000_000 else Path("/tmp")
)


# As root, the user that runs the server cannot reach the folder of pytest, so this is another one.
@contextmanager
def a_project() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="yamlsched-test-", dir=BASE))
    folder.chmod(0o755)
    try:
        yield folder / "schedules.yaml"
    finally:
        for home in folder.rglob(".yamlsched"):
            embedded.stop(home.parent / "schedules.yaml", force=True)
        shutil.rmtree(folder)


def said_dsn(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate("done\n", timeout=60)
    assert process.returncode == 0


def answer(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row
    return row[0]


def carry_out(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def kill(pid: int) -> None:
    """Kill the process and wait for its end: until then the kernel accepts connections for it."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))


def pid_of_server(file: Path) -> int:
    pid = embedded.status(file).pid
    assert pid
    return pid
