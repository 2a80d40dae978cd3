"""What doctor asks an executor: does an agent start there, with which versions, and what can it import and reach?"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import platform
import socket
import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from yamlsched import __version__, store
from yamlsched.definitions.executors import CommandExecutor, DaskExecutor, Engine
from yamlsched.definitions.lookup import source_hash
from yamlsched.definitions.paths import import_path, search_path
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.programs import describe_exit, signal_group
from yamlsched.store import doctor
from yamlsched.store.dsn import redactor
from yamlsched.worker.executors.remote import dask_cluster
from yamlsched.worker.executors.remote.launcher import launcher_environment
from yamlsched.worker.handlers import resolve

MARK = "yamlsched-probe:"  # before the answer, in whatever else the engine prints
TIMEOUT_SECONDS = 60.0
MAX_ERROR_CHARS = 300


def encode(handlers: Sequence[str], paths: Sequence[str]) -> str:
    """Return the argument for the agent."""
    content = zlib.compress(json.dumps({"handlers": list(handlers), "paths": list(paths)}).encode(), 9)
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def answer(argument: str, dsn: str | None, file: Path) -> str:
    """Return what the agent finds on its host, as a line of output. Raises Refused for an invalid argument."""
    try:
        content = base64.urlsafe_b64decode(argument + "=" * (-len(argument) % 4))
        plain: dict[str, Any] = json.loads(zlib.decompressobj().decompress(content, 1 << 20))
        handlers, paths = list(plain["handlers"]), tuple(plain["paths"])
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Refused('this is not a probe: only "yamlsched doctor" makes one') from error
    sys.path[:0] = map(str, search_path(file, paths, ()))
    found: dict[str, Any] = {
        "yamlsched": __version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "folder": str(file.parent),
        "sources": {path: source_hash(path, import_path(file, paths)) for path in handlers},
        "handlers": {path: problem for path in handlers if (problem := _import_problem(path))},
        **_database(dsn),
    }
    return MARK + json.dumps(found)


def _import_problem(path: str) -> str:
    try:
        resolve(path)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    return ""


def _database(dsn: str | None) -> dict[str, Any]:
    if not dsn:
        return {"database_error": "no DSN there: set YAMLSCHED_DSN, for example in the image"}
    try:
        with store.connect(dsn) as connection:
            seen = doctor.server(connection)
            skew = (datetime.now(UTC) - seen.now).total_seconds()
            lacks = doctor.missing_privileges(connection)
            identity = doctor.identity(connection) if doctor.can_read(connection) else None
            return {"role": seen.who, "lacks": lacks[:3], "identity": identity, "skew": skew}
    except (EnvironmentFailed, psycopg.Error) as error:
        return {"database_error": redactor(dsn)(str(error))[:MAX_ERROR_CHARS]}


def ask(executor: Engine, folder: Path, handlers: Sequence[str], paths: Sequence[str]) -> dict[str, Any]:
    """Start an agent on ``executor`` that answers. Raises EnvironmentFailed, with the reason, if there is no answer."""
    words = ["--probe", encode(handlers, paths)]
    if isinstance(executor, DaskExecutor):
        status, output = asyncio.run(dask_cluster.ask(executor.address, words, TIMEOUT_SECONDS))
    else:
        status, output = _ask_program(executor, folder, words)
    for line in output.splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return found
    last = " / ".join(line.strip() for line in output.splitlines() if line.strip())[-MAX_ERROR_CHARS:]
    raise EnvironmentFailed(f"no answer, {describe_exit(status)}: {last or 'no output'}")


def _ask_program(executor: CommandExecutor, folder: Path, words: Sequence[str]) -> tuple[int, str]:
    argv = [argument.replace("{id}", f"probe-{os.getpid()}") for argument in executor.command]
    argv += ["yamlsched", "attempt", *words]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=launcher_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailed(f'"{argv[0]}" cannot be started: {os.strerror(error.errno or 0)}') from error
    try:
        output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        signal_group(process.pid, 9)
        process.wait()
        raise EnvironmentFailed(f"no answer within {TIMEOUT_SECONDS:.0f} s") from error
    return process.returncode, output.decode("utf-8", "replace")
