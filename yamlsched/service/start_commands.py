"""The commands that start workers: each starts one, and returns."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from yamlsched import log
from yamlsched.handler.programs import SECRETS, describe_exit, signal_group
from yamlsched.service.start_rule import QueueStart
from yamlsched.sync.files import ScheduleFile

TERMINATE_SECONDS, KILL_SECONDS = 60.0, 90.0  # after which a command gets SIGTERM, and SIGKILL
MAX_ERROR_LINES, MAX_ERROR_CHARS = 5, 1_000  # of what a failed command printed last


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
    return shutil.which(str(folder / program) if "/" in program else program)


def run_command(context: StartContext, start: QueueStart, id: str) -> str | None:
    """Run the command of a worker; return why it has failed, with its last lines, or None."""
    names = {
        "worker": id,
        "queue": start.queue,
        "namespace": context.namespace,
        "env": context.environment,
    }
    try:
        output = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [_replace(word, names) for word in start.command],
            cwd=context.folder,
            env=_environment(names),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"{start.command[0]}: {error.strerror}"
    log.info("worker.requested", queue=start.queue, worker=id)
    with output:
        if (reason := _await(process)) is None:
            return None
        output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_ERROR_CHARS))
        text = output.read().decode("utf-8", "replace").replace("\0", "")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join([reason, *lines[-MAX_ERROR_LINES:]])[:MAX_ERROR_CHARS]


def _await(process: subprocess.Popen[bytes]) -> str | None:
    """Wait until a command has ended, end it if it runs for too long, and return why it failed."""
    with suppress(subprocess.TimeoutExpired):
        status = process.wait(TERMINATE_SECONDS)
        return describe_exit(status) if status else None
    signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS - TERMINATE_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    process.wait()
    return f"it did not return within {TERMINATE_SECONDS:.0f} s"


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
