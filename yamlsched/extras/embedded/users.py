"""Who uses the server: the first user starts it, the last one stops it.

There are two locks. Each user holds ``users`` shared as long as it lives; the kernel releases it
however the process ends. Users join and leave under ``mutex``, so that no user joins while the last
one stops the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.embedded import server
from yamlsched.extras.embedded.binaries import find_binaries
from yamlsched.extras.embedded.location import (
    Location,
    data_folder,
    locate,
    make_folder,
    open_file,
    prepare,
    try_lock,
)
from yamlsched.extras.embedded.processes import exists, postmaster

MUTEX_TIMEOUT_SECONDS = 180  # longer than any start or stop by another process


@dataclass(frozen=True)
class ServerStatus:
    """What is known about an embedded database without starting it. ``users`` are pids.

    ``data``, ``dsn`` and ``version`` are None before its first use.
    """

    running: bool
    kept: bool
    folder: Path
    data: Path | None
    log: Path
    dsn: str | None
    version: str | None
    pid: int | None
    users: list[int]
    size_bytes: int


@contextlib.contextmanager
def running(schedules_file: Path, by_name: bool = False, keep: bool = False) -> Iterator[str]:
    """Yield the DSN of the embedded database of ``schedules_file``. The server runs at least until
    the block ends.

    ``by_name`` allows the system's own PostgreSQL programs; ``keep`` leaves the server running
    afterwards. Raises NoDatabase if there are no programs, EnvironmentFailed if the server cannot
    be started.
    """
    binaries = find_binaries(by_name)
    folder = data_folder(schedules_file)
    make_folder(folder)
    pid = os.getpid()
    with _translate_errors(folder):
        users = open_file(folder / "users")
    with users:
        with _translate_errors(folder), _mutex(folder):
            location = prepare(folder)
            fcntl.flock(users, fcntl.LOCK_SH)
            _write_users(folder, [*_users(folder), pid])
            try:
                server.ensure(location, binaries)
            except BaseException:
                _leave(location, users, pid)
                raise
            if keep:
                open_file(folder / "keep").close()
        try:
            yield location.dsn
        finally:
            if os.getpid() == pid:  # a forked child shares the lock and must not release it
                with _translate_errors(folder), _mutex(folder):
                    _leave(location, users, pid)


def _leave(location: Location, users: BinaryIO, pid: int) -> None:
    pids = _users(location.folder)
    with contextlib.suppress(ValueError):
        pids.remove(pid)
    _write_users(location.folder, pids)
    try:
        if try_lock(users) and not (location.folder / "keep").exists():
            server.stop(location)
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)  # also for children that we forked


def start_and_keep(schedules_file: Path, by_name: bool = False) -> str:
    """Start the server if needed, keep it running without users, and return its DSN."""
    with running(schedules_file, by_name, keep=True) as dsn:
        return dsn


def stop(schedules_file: Path, force: bool = False) -> bool:
    """Stop the server and no longer keep it. Return False if it was not running.

    Raises Refused while it is in use, unless ``force``. In both cases it stops when its last user
    exits.
    """
    folder = data_folder(schedules_file)
    if not folder.exists():
        return False
    with _translate_errors(folder), open_file(folder / "users") as users, _mutex(folder):
        location = locate(folder)
        (folder / "keep").unlink(missing_ok=True)
        if not server.is_alive(location):
            return False
        if not try_lock(users) and not force:
            pids = ", ".join(map(str, _users(folder)))
            raise Refused(
                "the embedded PostgreSQL is in use by"
                f" {f'process {pids}' if pids else 'another process'}; it stops when they exit. To"
                " stop it anyway: yamlsched db stop --force"
            )
        server.stop(location)
        return True


def discard(schedules_file: Path) -> bool:
    """Delete the database with all its data. Return False, and delete nothing, if it is in use."""
    folder = data_folder(schedules_file)
    if not folder.exists():
        return True
    with _translate_errors(folder), open_file(folder / "users") as users, _mutex(folder):
        if not try_lock(users):
            return False
        location = locate(folder)
        server.stop(location)
        for path in (location.home, folder):
            if path.exists():
                shutil.rmtree(path)
    return True


def status(schedules_file: Path) -> ServerStatus:
    folder = data_folder(schedules_file)
    location = locate(folder)
    is_created = (location.data / "PG_VERSION").exists()
    return ServerStatus(
        running=folder.exists() and server.is_ready(location),
        kept=(folder / "keep").exists(),
        folder=folder,
        data=location.data if is_created else None,
        log=location.log,
        dsn=location.dsn if is_created else None,
        version=(location.data / "PG_VERSION").read_text().strip() if is_created else None,
        pid=postmaster(location),
        users=_users(folder),
        size_bytes=sum(
            _size(Path(parent, name))
            for parent, _, names in os.walk(location.data)
            for name in names
        ),
    )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    """Raise EnvironmentFailed for errors of the file system. No code of the user's runs inside."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename else folder
        raise EnvironmentFailed(
            f"the embedded PostgreSQL in {folder}: {where}: {error.strerror}"
        ) from error


@contextlib.contextmanager
def _mutex(folder: Path) -> Iterator[None]:
    with open_file(folder / "mutex") as file:
        deadline = time.monotonic() + MUTEX_TIMEOUT_SECONDS
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    "another process has been starting or stopping the embedded PostgreSQL in"
                    f" {folder} for more than {MUTEX_TIMEOUT_SECONDS} s. To see which process:"
                    f" fuser {folder / 'mutex'}"
                )
            time.sleep(server.POLL_SECONDS)
        yield


def _write_users(folder: Path, pids: list[int]) -> None:
    """Write the users for people to read. The lock alone decides whether there are any."""
    with open_file(folder / "users") as file:
        file.truncate(0)
        file.write("".join(f"{pid}\n" for pid in pids).encode())


def _users(folder: Path) -> list[int]:
    try:
        words = (folder / "users").read_text(errors="replace").split()
    except OSError:
        return []
    return [int(word) for word in words if word.isdigit() and exists(int(word))]
