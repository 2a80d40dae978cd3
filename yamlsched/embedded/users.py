"""Who uses the server: the first to come starts it, the last to leave stops it.

Two locks. Each user holds ``lease`` shared for as long as it lives: the kernel gives it back however a process
ends. Coming and leaving happen under ``mutex``, so that nobody comes while the last one is stopping the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from yamlsched.embedded import server
from yamlsched.embedded.binaries import find_binaries
from yamlsched.embedded.location import Location, data_folder, locate, make_folder, open_file, prepare
from yamlsched.embedded.processes import exists, postmaster
from yamlsched.errors import EnvironmentFailed, Refused

MUTEX_SECONDS = 180  # longer than any start or stop that another one may be busy with


@dataclass(frozen=True)
class Status:
    """What can be said of an embedded database without starting it. ``size`` is in bytes; ``users`` are pids.

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
    size: int


@contextlib.contextmanager
def running(schedules_file: Path, by_name: bool = False, keep: bool = False) -> Iterator[str]:
    """Yield the DSN of the embedded database of ``schedules_file``, which serves at least until the block is left.

    ``by_name`` lets the system's own PostgreSQL programs be used; ``keep`` leaves the server running for good.
    Raises NoDatabase without programs, EnvironmentFailed when the server cannot be had.
    """
    binaries = find_binaries(by_name)
    folder = data_folder(schedules_file)
    make_folder(folder)
    us = os.getpid()
    with _translate_errors(folder):
        lease = open_file(folder / "users")
    with lease:
        with _translate_errors(folder), _mutex(folder):
            location = prepare(folder)
            fcntl.flock(lease, fcntl.LOCK_SH)
            _list_users(folder, add=us)
            try:
                server.ensure(location, binaries)
            except BaseException:
                _leave(location, lease, us)
                raise
            if keep:
                open_file(folder / "keep").close()
        try:
            yield location.dsn
        finally:
            if os.getpid() == us:  # a forked child shares the lease, and must not give it back
                with _translate_errors(folder), _mutex(folder):
                    _leave(location, lease, us)


def _leave(location: Location, lease: BinaryIO, us: int) -> None:
    _list_users(location.folder, remove=us)
    try:
        if _nobody_else_holds(lease) and not (location.folder / "keep").exists():
            server.stop(location)
    finally:
        fcntl.flock(lease, fcntl.LOCK_UN)  # also for children that we forked


def _nobody_else_holds(lease: BinaryIO) -> bool:
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start_and_keep(schedules_file: Path, by_name: bool = False) -> str:
    """Start the server if need be, keep it after its last user has left, and return its DSN."""
    with running(schedules_file, by_name, keep=True) as dsn:
        return dsn


def stop(schedules_file: Path, force: bool = False) -> bool:
    """Stop the server, kept or not; say whether there was one to stop.

    Refuses while it is in use, unless ``force`` is given; then it is no longer kept, and its last user stops it.
    """
    folder = data_folder(schedules_file)
    if not folder.exists():
        return False
    with _translate_errors(folder), open_file(folder / "users") as lease, _mutex(folder):
        location = locate(folder)
        (folder / "keep").unlink(missing_ok=True)
        if not server.is_alive(location):
            return False
        if not _nobody_else_holds(lease) and not force:
            raise Refused(
                f"the embedded PostgreSQL is in use by {_show(_users(folder))}; it stops when they exit. To stop "
                "it anyway: yamlsched db stop --force"
            )
        server.stop(location)
        return True


def discard(schedules_file: Path) -> bool:
    """Remove the database with all its data, unless it is in use; say whether it is gone. For throw-away ones."""
    import shutil

    folder = data_folder(schedules_file)
    if not folder.exists():
        return True
    with _translate_errors(folder), open_file(folder / "users") as lease, _mutex(folder):
        if not _nobody_else_holds(lease):
            return False
        location = locate(folder)
        server.stop(location)
        for remove in (location.home, folder):
            if remove.exists():
                shutil.rmtree(remove)
    return True


def status(schedules_file: Path) -> Status:
    folder = data_folder(schedules_file)
    location = locate(folder)
    exists = (location.data / "PG_VERSION").exists()
    return Status(
        running=folder.exists() and server.is_ready(location),
        kept=(folder / "keep").exists(),
        folder=folder,
        data=location.data if exists else None,
        log=location.log,
        dsn=location.dsn if exists else None,
        version=(location.data / "PG_VERSION").read_text().strip() if exists else None,
        pid=postmaster(location),
        users=_users(folder),
        size=sum(_size(Path(at, name)) for at, _, names in os.walk(location.data) for name in names),
    )


@contextlib.contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into one sentence; nothing of the user's runs inside."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename else folder
        raise EnvironmentFailed(f"the embedded PostgreSQL in {folder}: {where}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _mutex(folder: Path) -> Iterator[None]:
    with open_file(folder / "mutex") as file:
        deadline = time.monotonic() + MUTEX_SECONDS
        pause = 0.001
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentFailed(
                        f"another process has been starting or stopping the embedded PostgreSQL in {folder} "
                        f"for more than {MUTEX_SECONDS} s. To see which process: fuser {folder / 'mutex'}"
                    ) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        yield


# The pids in the lease file are for people; that somebody uses the server is told by the lock alone.


def _list_users(folder: Path, add: int | None = None, remove: int | None = None) -> None:
    pids = _users(folder)
    if add is not None:
        pids.append(add)
    if remove in pids:
        pids.remove(remove)
    with open_file(folder / "users") as file:
        file.truncate(0)
        file.write("".join(f"{pid}\n" for pid in pids).encode())


def _users(folder: Path) -> list[int]:
    try:
        words = (folder / "users").read_text(errors="replace").split()
    except OSError:
        return []
    return [int(word) for word in words if word.isdigit() and exists(int(word))]


def _show(pids: list[int]) -> str:
    return "process " + ", ".join(map(str, pids)) if pids else "another process"
