"""One PostgreSQL server: create its data, start it, find it, stop it. The callers hold the mutex.

A lock shows whether a server is alive, not a pid: the server and all its processes inherit the
locked ``server.lock``. The lock is free only when the last of them has exited. A reused pid, a
zombie, another container or an orphaned backend cannot make it look otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from yamlsched import log
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.embedded import binaries
from yamlsched.extras.embedded.location import PORT, Location, open_file, require_name, try_lock
from yamlsched.extras.embedded.processes import (
    forget_reused_pid,
    kill_orphans,
    postmaster,
    read_pid_file,
)

START_TIMEOUT_SECONDS = 120  # includes a crash recovery
FAST_STOP_SECONDS = 20  # after which an immediate stop is requested
STOP_TIMEOUT_SECONDS = 40
ORPHAN_SECONDS = 3
"""How long backends may outlive their server before they are killed."""
POLL_SECONDS = 0.005
MAX_LOG_BYTES = 5_000_000

StrPath = str | Path

# Settings of a small private server; fsync stays on. They are passed on the command line, so that a
# new version of this table also applies to existing data.
SETTINGS = {
    "listen_addresses": "",
    "port": PORT,
    "unix_socket_permissions": "0700",
    "max_connections": 100,
    "shared_buffers": "64MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_min_error_statement": "panic",  # statements hold payloads
    "logging_collector": "off",
    "max_logical_replication_workers": 0,
    "jit": "off",
}


def is_alive(location: Location) -> bool:
    """Return whether any process of a server of this location exists: starting, ready, or an
    orphan.
    """
    with open_file(location.folder / "server.lock") as file:
        if not try_lock(file):
            return True
    return postmaster(location) is not None  # a server that was started by hand has no such lock


def is_ready(location: Location) -> bool:
    """Return whether the server accepts clients.

    The status line may be that of a killed server, the socket opens before a recovery has finished,
    and a process that a killed server has just forked keeps its socket open: check all of them.
    """
    if not _status_is_ready(location):
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(os.fspath(location.sockets / f".s.PGSQL.{PORT}"))
        except OSError:
            return False
    return _status_is_ready(location)


def _status_is_ready(location: Location) -> bool:
    pid_file = read_pid_file(location)
    return pid_file is not None and pid_file.status == "ready" and postmaster(location) is not None


def ensure(location: Location, folder: Path) -> None:
    """Return when the server is ready. If needed, create its data, start it, or wait for a server
    that is stopping.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    started_at = None  # the log's length when we started a server
    while not is_ready(location):
        if not is_alive(location):
            if started_at is not None:
                raise _failed("the embedded PostgreSQL does not start", location, started_at)
            if not location.data.exists():
                _create(location, folder)
            started_at = _start(location, folder)
        elif started_at is None and postmaster(location) is None:
            stop(location)  # orphans of a killed server, or what a killed command has started
        if time.monotonic() > deadline:
            raise _failed(
                f"the embedded PostgreSQL is not ready after {START_TIMEOUT_SECONDS} s",
                location,
                started_at or 0,
            )
        time.sleep(POLL_SECONDS)


def _create(location: Location, folder: Path) -> None:
    """Run initdb in a temporary folder, which gets its final name when it is complete."""
    require_name(location.account)
    number = binaries.version(folder)
    what = f"first use: creating a private PostgreSQL {number} in {location.home}"
    log.message("info", "database.message", f"yamlsched: {what}", message=what)
    for left_over in location.home.glob("data.new-*"):
        shutil.rmtree(left_over)
    new = location.home / f"data.new-{secrets.token_hex(4)}"  # initdb creates it, not root
    folder = binaries.within_reach(folder, location.account)
    # Sort by code point, the same on every machine.
    locale = ["--locale=C"]
    if binaries.major(number) >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    initdb: list[StrPath] = [
        folder / "initdb",
        "-D",
        new,
        "--username=yamlsched",
        "--auth=trust",
        "--encoding=UTF8",
    ]
    single: list[StrPath] = [folder / "postgres", "--single", "-j", "-D", new, "template1"]
    started_at = _log_size(location)
    for words, text in (([*initdb, *locale], b""), (single, b"create database yamlsched;\n")):
        done = _execute(location, words, input=text)
        # The stand-alone server exits with 0 after a failed statement.
        if done.returncode or b"ERROR:" in _written_since(location, started_at):
            raise _failed(
                f"cannot create the embedded PostgreSQL in {location.home}",
                location,
                started_at,
            )
    new.rename(location.data)
    descriptor = os.open(location.home, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _start(location: Location, folder: Path) -> int:
    """Start the server and return the previous length of its log."""
    _check_version(location, folder)
    forget_reused_pid(location)
    words: list[StrPath] = [
        binaries.within_reach(folder, location.account) / "postgres",
        "-D",
        location.data,
    ]
    own = {"cluster_name": location.name, "unix_socket_directories": f'"{location.sockets}"'}
    for name, value in {**SETTINGS, **own}.items():
        words += ["-c", f"{name}={value}"]
    if _log_size(location) > MAX_LOG_BYTES:
        location.log.replace(location.log.with_suffix(".log.old"))
    started_at = _log_size(location)
    # Through a shell that exits at once, in its own session: the server is not our child, so it
    # leaves no zombie in a long-lived process, and Ctrl-C in our terminal does not reach it.
    background: list[StrPath] = ["/bin/sh", "-c", '"$@" &', "sh", *words]
    _execute(location, background, stdin=subprocess.DEVNULL, start_new_session=True)
    return started_at


def _execute(
    location: Location, words: list[StrPath], **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a program as the server's user, with the log as its output.

    It inherits the lock: if we are killed, the next process waits until the program has exited.
    """
    # A clean environment: PG* variables would change what is created, and the server needs none of
    # our secrets.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    account = location.account.as_popen() if location.account else {}
    with open_file(location.folder / "server.lock") as lock, open_file(location.log) as output:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return subprocess.run(
            words,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**kept, "LC_ALL": "C", "TZ": "UTC"},
            pass_fds=[lock.fileno()],
            **account,
            **options,
        )


def _check_version(location: Location, folder: Path) -> None:
    made_by = (location.data / "PG_VERSION").read_text().strip()
    number = binaries.version(folder)
    if int(made_by) != binaries.major(number):
        raise EnvironmentFailed(
            f"the data in {location.data} was created by PostgreSQL {made_by}, and the programs in"
            f" {folder} are {number}: set YAMLSCHED_PG_BIN to the bin folder of a PostgreSQL"
            f" {made_by} (to move: `yamlsched db dump` with it, remove {location.data}, then"
            " `yamlsched db restore`)"
        )


def stop(location: Location) -> None:
    """Stop the server, cleanly if it responds in time. Return when all its processes
    have exited.
    """
    started = time.monotonic()
    sent = None
    while is_alive(location):
        waited = time.monotonic() - started
        if waited > STOP_TIMEOUT_SECONDS:
            raise _failed(
                f"the embedded PostgreSQL does not stop within {STOP_TIMEOUT_SECONDS} s",
                location,
                0,
            )
        how = signal.SIGINT if waited < FAST_STOP_SECONDS else signal.SIGQUIT
        pid = postmaster(location)
        if pid and sent != (pid, how):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            sent = (pid, how)
        if pid is None and waited > ORPHAN_SECONDS:
            kill_orphans(location)
        time.sleep(POLL_SECONDS)
    if location.sockets != location.home:
        with contextlib.suppress(OSError):
            location.sockets.rmdir()


def _failed(what: str, location: Location, since: int) -> EnvironmentFailed:
    lines = _written_since(location, since).decode(errors="replace").splitlines()
    end = "".join(f"\n  {line}" for line in lines[-8:] if line.strip())
    return EnvironmentFailed(
        f"{what}. Its log is {location.log}{', and ends with:' + end if end else ''}"
    )


def _log_size(location: Location) -> int:
    with open_file(location.log) as file:
        return file.seek(0, os.SEEK_END)


def _written_since(location: Location, since: int) -> bytes:
    """Return the log from byte ``since``."""
    with open_file(location.log) as file:
        file.seek(since)
        return file.read()
