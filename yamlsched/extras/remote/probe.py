"""What doctor asks an executor: does an agent start there, with which versions, and what can it
import and reach?
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import __version__, db
from yamlsched.db.dsn import redactor
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.doctor import Check, server
from yamlsched.extras.remote import dask_cluster
from yamlsched.extras.remote.launcher import launcher_environment
from yamlsched.handler.calls import resolve
from yamlsched.handler.programs import describe_exit, signal_group
from yamlsched.schedule.job import CommandExecutor, DaskExecutor, Engine, NotifyTarget
from yamlsched.schedule.lookup import Sources, split_path
from yamlsched.schedule.paths import import_path, search_path

if TYPE_CHECKING:
    from yamlsched.schedule.load import Loaded


MARK = "yamlsched-probe:"  # before the answer, in whatever else the engine prints
TIMEOUT_SECONDS = 60.0
MAX_ERROR_CHARS = 300


def encode(handlers: Sequence[str], paths: Sequence[str]) -> str:
    """Return the argument for the agent."""
    content = zlib.compress(
        json.dumps({"handlers": list(handlers), "paths": list(paths)}).encode(), 9
    )
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def answer(argument: str, dsn: str | None, file: Path) -> str:
    """Return what the agent finds on its host, as a line of output. Raises Refused for an invalid
    argument.
    """
    try:
        content = base64.urlsafe_b64decode(argument + "=" * (-len(argument) % 4))
        plain: dict[str, Any] = json.loads(zlib.decompressobj().decompress(content, 1 << 20))
        handlers, paths = list(plain["handlers"]), tuple(plain["paths"])
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Refused('this is not a probe: only "yamlsched doctor" makes one') from error
    sys.path[:0] = map(str, search_path(file, paths, ()))
    sources = Sources(import_path(file, paths))
    facts: dict[str, Any] = {
        "yamlsched": __version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "folder": str(file.parent),
        "sources": {path: source_hash(path, sources) for path in handlers},
        "handlers": {path: problem for path in handlers if (problem := _import_problem(path))},
        **_database(dsn),
    }
    return MARK + json.dumps(facts)


def source_hash(dotted: str, sources: Sources) -> str | None:
    """Return a short hash of the source file of the module in a dotted path; None if there is no
    such file.
    """
    file = sources.module(split_path(dotted)[0])
    if not isinstance(file, Path) or not file.is_file():
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


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
        with db.connect(dsn) as connection:
            skew = (datetime.now(UTC) - server.read_server(connection).now).total_seconds()
            role = server.read_role(connection)
            identity = server.identity(connection) if role.can_read else None
            return {"role": role.name, "lacks": role.lacks[:3], "identity": identity, "skew": skew}
    except (EnvironmentFailed, psycopg.Error) as error:
        return {"database_error": redactor(dsn)(str(error))[:MAX_ERROR_CHARS]}


def ask(
    executor: Engine,
    folder: Path,
    handlers: Sequence[str],
    paths: Sequence[str],
    targets: Iterable[NotifyTarget] = (),
) -> dict[str, Any]:
    """Start an agent on ``executor`` that answers; {} if a program exits with 0 without an answer:
    it hands over.

    Raises EnvironmentFailed, with the reason, if there is no answer otherwise.
    """
    words = ["--probe", encode(handlers, paths)]
    if isinstance(executor, DaskExecutor):
        status, output = asyncio.run(dask_cluster.ask(executor.address, words, TIMEOUT_SECONDS))
    else:
        status, output = _ask_program(executor, folder, words, targets)
    for line in output.splitlines():
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    if status == 0:
        return {}
    last = " / ".join(line.strip() for line in output.splitlines() if line.strip())[
        -MAX_ERROR_CHARS:
    ]
    raise EnvironmentFailed(f"no answer, {describe_exit(status)}: {last or 'no output'}")


def _ask_program(
    executor: CommandExecutor, folder: Path, words: Sequence[str], targets: Iterable[NotifyTarget]
) -> tuple[int, str]:
    argv = [argument.replace("{id}", f"probe-{os.getpid()}") for argument in executor.command]
    argv += ["yamlsched", "attempt", *words]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=launcher_environment(targets),
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailed(
            f'"{argv[0]}" cannot be started: {os.strerror(error.errno or 0)}'
        ) from error
    try:
        output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
    except subprocess.TimeoutExpired as error:
        signal_group(process.pid, 9)
        process.wait()
        raise EnvironmentFailed(f"no answer within {TIMEOUT_SECONDS:.0f} s") from error
    return process.returncode, output.decode("utf-8", "replace")


BY_HAND = "run its command by hand, followed by: yamlsched --version (docs/executors.md)"
DEPLOY = "deploy the same version of the code to both"
ON_DASK = (
    "check the scheduler, its workers, and the TLS configuration of Dask here (docs/executors.md)"
)


def check(
    loaded: Loaded, file: Path, paths: Sequence[str], opened: AbstractContextManager[str]
) -> Iterator[Check]:
    """Start an agent on each executor, and check what it finds there. ``opened`` gives the DSN of
    this host.

    ``paths`` are further folders with handlers on this host.
    """
    from yamlsched.extras.remote import dask_cluster

    own_identity = None
    if loaded.executors:
        try:
            with opened as dsn, db.connect(dsn) as connection:
                own_identity = (
                    server.identity(connection) if server.read_role(connection).can_read else None
                )
        except (EnvironmentFailed, psycopg.Error):
            pass  # the checks of the database report it
    sources = Sources(import_path(file, loaded.paths, paths))
    for name, executor in loaded.executors.items():
        is_dask = isinstance(executor, DaskExecutor)
        if is_dask and not dask_cluster.is_installed():
            what = "Dask is not installed on this host, which claims no runs for this executor"
            yield Check(f"executor {name}", "fail", what, dask_cluster.INSTALL)
            continue
        jobs = [job for job in loaded.jobs.values() if job.executor == name]
        handlers = sorted(
            {path for job in jobs for path in (job.handler, job.on_dead) if path is not None}
        )
        try:
            answer = ask(
                executor, file.resolve().parent, handlers, loaded.paths, loaded.notify.values()
            )
        except EnvironmentFailed as error:
            yield Check(f"executor {name}", "fail", str(error), ON_DASK if is_dask else BY_HAND)
            continue
        if not answer:
            what = (
                "its program has handed the question over and exited, so that no answer can be read"
            )
            yield Check(
                f"executor {name}",
                "warn",
                what,
                "enqueue a run, and look at status and the log of the engine",
            )
            continue
        own = {handler: source_hash(handler, sources) for handler in handlers}
        yield judge(name, answer, own, own_identity)


def judge(
    name: str, answer: dict[str, Any], own: dict[str, str | None], own_identity: str | None
) -> Check:
    """Judge the answer of an agent. ``own`` has the handlers, each with the hash of its source file
    on this host.
    """
    name, host = f"executor {name}", answer["host"]
    where = f"{host}, Python {answer['python']}, yamlsched {answer['yamlsched']}"
    if error := answer.get("database_error"):
        remedy = "the agent takes the DSN from the environment of its own host, never from this one"
        return Check(
            name, "fail", f"{where}: the database cannot be reached from there: {error}", remedy
        )
    if answer["lacks"]:
        what = f"{where}: {answer['role']} lacks {', '.join(answer['lacks'])}"
        return Check(name, "fail", what, f"grant yamlsched_worker to {answer['role']}")
    if own_identity is not None and answer["identity"] not in (None, own_identity):
        remedy = "set the YAMLSCHED_DSN of this host there"
        return Check(name, "fail", f"{where}: its DSN leads to another database", remedy)
    if problems := answer["handlers"]:
        path, problem = next(iter(problems.items()))
        count = f"{len(problems)} of {_handlers(len(own))}"
        what = f"{where}: {count} cannot be imported in {answer['folder']}: {path}: {problem}"
        return Check(
            name, "fail", what, "deploy the code there, and let the agent start in its folder"
        )
    if answer["yamlsched"] != __version__:
        remedy = "install the same version on both"
        return Check(name, "warn", f"{where}, but yamlsched {__version__} here", remedy)
    hashes = answer["sources"]
    if differing := [
        path for path in own if own[path] != hashes[path] and None not in (own[path], hashes[path])
    ]:
        path, count = differing[0], f"{len(differing)} of {_handlers(len(own))}"
        what = f"{split_path(path)[0]} is {hashes[path]} there, {own[path]} here"
        return Check(
            name,
            "warn",
            f"{where}: the code of {count} differs from that of this host: {what}",
            DEPLOY,
        )
    if abs(answer["skew"]) > server.MAX_CLOCK_SKEW.total_seconds():
        what = (
            f"{where}: its clock is {approximate(timedelta(seconds=abs(answer['skew'])))} off the"
            " database's"
        )
        return Check(name, "warn", what, "synchronize it by NTP: log lines of handlers follow it")
    clock = f"{abs(answer['skew']) * 1000:.0f} ms off the database's"
    return Check(
        name, "ok", f"{where}, clock {clock}, database role {answer['role']}, {_handlers(len(own))}"
    )


def _handlers(count: int) -> str:
    return f"{count} handler{'' if count == 1 else 's'}"
