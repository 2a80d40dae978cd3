"""Checks of executors: what an agent finds where it would execute attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import __version__, store
from yamlsched.definitions.executors import DaskExecutor
from yamlsched.definitions.lookup import source_hash, split_path
from yamlsched.definitions.paths import import_path
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed
from yamlsched.operations.doctor import MAX_CLOCK_SKEW, Check
from yamlsched.store import doctor

if TYPE_CHECKING:
    from yamlsched.definitions.load import Loaded

BY_HAND = "run its command by hand, followed by: yamlsched --version (docs/executors.md)"
DEPLOY = "deploy the same version of the code to both"
ON_DASK = "check the scheduler, its workers, and the TLS configuration of Dask here (docs/executors.md)"


def check(loaded: Loaded, file: Path, paths: Sequence[str], opened: AbstractContextManager[str]) -> Iterator[Check]:
    """Start an agent on each executor, and check what it finds there. ``opened`` gives the DSN of this host.

    ``paths`` are further folders with handlers on this host.
    """
    from yamlsched.worker.executors.remote import dask_cluster, probe

    own_identity = None
    if loaded.executors:
        try:
            with opened as dsn, store.connect(dsn) as connection:
                own_identity = doctor.identity(connection) if doctor.can_read(connection) else None
        except (EnvironmentFailed, psycopg.Error):
            pass  # the checks of the database report it
    folders = import_path(file, loaded.paths, paths)
    for name, executor in loaded.executors.items():
        is_dask = isinstance(executor, DaskExecutor)
        if is_dask and not dask_cluster.is_installed():
            what = "Dask is not installed on this host, which claims no runs for this executor"
            yield Check(f"executor {name}", "fail", what, dask_cluster.INSTALL)
            continue
        jobs = [job for job in loaded.jobs.values() if job.executor == name]
        handlers = sorted({path for job in jobs for path in (job.handler, job.on_dead) if path is not None})
        try:
            found = probe.ask(executor, file.resolve().parent, handlers, loaded.paths)
        except EnvironmentFailed as error:
            yield Check(f"executor {name}", "fail", str(error), ON_DASK if is_dask else BY_HAND)
            continue
        own = {handler: source_hash(handler, folders) for handler in handlers}
        yield judge(name, found, own, own_identity)


def judge(name: str, found: dict[str, Any], own: dict[str, str | None], own_identity: str | None) -> Check:
    """Judge the answer of an agent. ``own`` has the handlers, each with the hash of its source file on this host."""
    name, host = f"executor {name}", found["host"]
    where = f"{host}, Python {found['python']}, yamlsched {found['yamlsched']}"
    if error := found.get("database_error"):
        remedy = "the agent takes the DSN from the environment of its own host, never from this one"
        return Check(name, "fail", f"{where}: the database cannot be reached from there: {error}", remedy)
    if found["lacks"]:
        what = f"{where}: {found['role']} lacks {', '.join(found['lacks'])}"
        return Check(name, "fail", what, f"grant yamlsched_worker to {found['role']}")
    if own_identity is not None and found["identity"] not in (None, own_identity):
        remedy = "set the YAMLSCHED_DSN of this host there"
        return Check(name, "fail", f"{where}: its DSN leads to another database", remedy)
    if problems := found["handlers"]:
        path, problem = next(iter(problems.items()))
        count = f"{len(problems)} of {_handlers(len(own))}"
        what = f"{where}: {count} cannot be imported in {found['folder']}: {path}: {problem}"
        return Check(name, "fail", what, "deploy the code there, and let the agent start in its folder")
    if found["yamlsched"] != __version__:
        remedy = "install the same version on both"
        return Check(name, "warn", f"{where}, but yamlsched {__version__} here", remedy)
    hashes = found["sources"]
    if differing := [path for path in own if own[path] != hashes[path] and None not in (own[path], hashes[path])]:
        path, count = differing[0], f"{len(differing)} of {_handlers(len(own))}"
        what = f"{split_path(path)[0]} is {hashes[path]} there, {own[path]} here"
        return Check(name, "warn", f"{where}: the code of {count} differs from that of this host: {what}", DEPLOY)
    if abs(found["skew"]) > MAX_CLOCK_SKEW.total_seconds():
        what = f"{where}: its clock is {approximate(timedelta(seconds=abs(found['skew'])))} off the database's"
        return Check(name, "warn", what, "synchronize it by NTP: log lines of handlers follow it")
    clock = f"{abs(found['skew']) * 1000:.0f} ms off the database's"
    return Check(name, "ok", f"{where}, clock {clock}, database role {found['role']}, {_handlers(len(own))}")


def _handlers(count: int) -> str:
    return f"{count} handler{'' if count == 1 else 's'}"
