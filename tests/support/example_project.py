"""A copy of a project of examples/ with a database of its own, and its commands as cron or a developer starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from support.project import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
CRON_PATH = "/usr/bin:/bin"


class ExampleProject:
    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        self.db: psycopg.Connection[Any] = psycopg.connect(
            dsn, autocommit=True, row_factory=namedtuple_row
        )

    def run(self, *command: str, code: int = 0, **environment: str) -> str:
        """Run a program of the virtual environment, as a developer who has activated it; return its stdout."""
        variables = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "YAMLSCHED_DSN": self.dsn,
            **environment,
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``yamlsched *words`` as cron does: in the folder, with almost no environment."""
        return subprocess.Popen(
            [
                "/usr/bin/env",
                "-i",
                f"PATH={CRON_PATH}",
                f"YAMLSCHED_DSN={self.dsn}",
                str(BIN / "yamlsched"),
                *words,
            ],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "stderr").open("ab"),
            start_new_session=True,
        )

    def tick(self, code: int = 0) -> str:
        """Run a tick to its end, and return what it has written to stderr."""
        (self.folder / "stderr").write_bytes(b"")
        assert self.start("tick").wait(300) == code, (self.folder / "stderr").read_text()
        return (self.folder / "stderr").read_text()

    def tick_that_is_killed(self, when: str) -> None:
        """Start a tick, and kill it and its children once the query ``when`` has rows."""
        process = self.start("tick")
        try:
            until(lambda: self.db.execute(when.encode()).fetchall(), when)
        finally:
            for pid in (*children(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        own = (
            "select from pg_stat_activity where datname = current_database() and application_name like 'yamlsched%' "
            "and wait_event_type is distinct from 'Lock'"  # a handler's, which waits for the test
        )
        until(
            lambda: not self.db.execute(own).fetchall(),
            "nothing that the worker has sent is executed any more",
        )
        self.db.execute(
            "update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'"
        )

    def sessions(self) -> list[Any]:
        """Return the sessions that are neither ours nor yamlsched's."""
        query = (
            "select query from pg_stat_activity where datname = current_database() and backend_type = 'client backend' "
            "and application_name not like 'yamlsched%' and pid <> pg_backend_pid()"
        )
        return self.db.execute(query.encode()).fetchall()

    def runs(self) -> dict[str, list[tuple[str, int]]]:
        """Return status and attempts of the runs of each job."""
        rows = self.db.execute(
            "select job_type, status, attempts from yamlsched.job_runs order by id"
        ).fetchall()
        return {
            job: [(row.status, row.attempts) for row in rows if row.job_type == job]
            for job, *_ in rows
        }

    def value(self, query: str) -> Any:
        return self.db.execute(query.encode()).fetchone()[0]  # type: ignore[index]


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


@contextmanager
def an_example(name: str, folder: Path, dsn: str) -> Iterator[ExampleProject]:
    """Yield a copy of the example, whose jobs are applied."""
    ignored = shutil.ignore_patterns("__pycache__", "var", "*.egg-info")
    shutil.copytree(EXAMPLES / name, folder / name, ignore=ignored)
    project = ExampleProject(folder / name, dsn)
    try:
        project.run("yamlsched", "sync")
        yield project
    finally:
        project.db.close()
