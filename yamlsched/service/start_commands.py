"""The commands that start workers: each starts one, and returns."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

from yamlsched import log
from yamlsched.handler.programs import SECRETS, describe_exit, signal_group
from yamlsched.service.start_rule import StartSettings
from yamlsched.sync.files import ScheduleFile

TERMINATE_SECONDS, KILL_SECONDS = 60.0, 90.0  # after which a command gets SIGTERM, and SIGKILL
MAX_ERROR_LINES, MAX_ERROR_CHARS = 5, 1_000  # of what a failed command printed last


@dataclass(frozen=True, kw_only=True)
class QueueStart:
    """A queue whose workers are started, and how."""

    queue: str
    command: tuple[str, ...]
    settings: StartSettings
    start_timeout: timedelta


@dataclass(frozen=True, kw_only=True)
class StartContext:
    """Where starts happen: ``folder`` is that of the file."""

    dsn: str
    namespace: str
    environment: str
    folder: Path

    @classmethod
    def from_file(cls, schedule: ScheduleFile, dsn: str, namespace: str) -> StartContext:
        return cls(
            dsn=dsn,
            namespace=namespace,
            environment=schedule.environment,
            folder=schedule.real_file.parent,
        )


def find_program(program: str, folder: Path) -> str | None:
    """Return the path of a program that starts workers; None if this host does not have it."""
    if "/" in program:
        path = folder / program
        return str(path) if os.access(path, os.X_OK) and path.is_file() else None
    return shutil.which(program)


@dataclass
class Command:
    """A command that runs. What it prints goes to ``output``."""

    queue: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    started_at: float
    is_terminated: bool = False

    def error(self) -> str | None:
        """Return why it has failed, with its last lines; None if it has not."""
        reason = describe_exit(self.process.returncode)
        if self.is_terminated:
            reason = f"it did not return within {TERMINATE_SECONDS:.0f} s"
        elif self.process.returncode == 0:
            return None
        return "\n".join([reason, *self._last_lines()])[:MAX_ERROR_CHARS]

    def _last_lines(self) -> Sequence[str]:
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - MAX_ERROR_CHARS))
        text = self.output.read().decode("utf-8", "replace").replace("\0", "")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-MAX_ERROR_LINES:]

    def end_if_late(self, seconds: float) -> None:
        """Terminate it when it runs for too long, and kill it later."""
        if seconds >= KILL_SECONDS:
            signal_group(self.process.pid, signal.SIGKILL)
        elif seconds >= TERMINATE_SECONDS and not self.is_terminated:
            self.is_terminated = True
            signal_group(self.process.pid, signal.SIGTERM)


def launch(context: StartContext, id: str, start: QueueStart) -> Command:
    names = {
        "worker": id,
        "queue": start.queue,
        "namespace": context.namespace,
        "env": context.environment,
    }
    program = find_program(start.command[0], context.folder) or start.command[0]
    words = [program, *(_replace(word, names) for word in start.command[1:])]
    output = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        process = subprocess.Popen(
            words,
            cwd=context.folder,
            env=_environment(names),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError:
        output.close()
        raise
    log.info("worker.requested", queue=start.queue, worker=id)
    return Command(start.queue, process, output, time.monotonic())


def _environment(names: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the environment of a start command: this one without secrets, and the worker's."""
    kept = {name: value for name, value in os.environb.items() if not name.startswith(SECRETS)}
    variables = {f"YAMLSCHED_{name.upper()}": value for name, value in names.items() if value}
    return kept | {name.encode(): value.encode() for name, value in variables.items()}


def _replace(word: str, names: Mapping[str, str]) -> str:
    """Replace the placeholders in a word of a command.

    >>> _replace("--job-name={worker}", {"worker": "gpu-1"})
    '--job-name=gpu-1'
    """
    for name, value in names.items():
        word = word.replace(f"{{{name}}}", value)
    return word
