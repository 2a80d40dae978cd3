"""Where the embedded database lies, and as which operating system user its server runs.

<folder of schedules.yaml>/.yamlsched/     0700, belongs to its first user
    .gitignore
    mutex          held while a process starts or stops the server, joins or leaves its users
    users          held shared by every process that uses the server; lists their pids
    server.lock    held by the server and inherited by all its processes
    keep           present if `db start` keeps the server running
    postgres.log
    postgres/      0700, belongs to the server's user; for root possibly a link to
                   /var/lib/yamlsched/<hash>
        data/
        .s.PGSQL.5432
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from yamlsched import log
from yamlsched.errors import EnvironmentFailed

SYSTEM_HOME = Path("/var/lib/yamlsched")
SHORT_HOME = Path("/tmp")  # not TMPDIR: cron and a shell must find the same socket
PORT = 5432  # only a part of the socket's name
MAX_SOCKET_BYTES = 103  # the limit of macOS; Linux allows 107


@dataclass(frozen=True)
class Account:
    """The operating system user that runs the server for root."""

    uid: int
    gid: int
    name: str

    def as_popen(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can(self, command: str, path: Path) -> bool:
        """Try it instead of reading the mode bits: access lists and mount options matter too."""
        words = ["/bin/sh", "-c", f'{command} "$1"', "sh", os.fspath(path)]
        try:
            return (
                subprocess.run(
                    words, cwd="/", stderr=subprocess.DEVNULL, **self.as_popen()
                ).returncode
                == 0
            )
        except PermissionError as error:
            raise EnvironmentFailed(
                f"PostgreSQL does not run as root, and root cannot switch to user {self.name} here"
                " (possibly a container without the capabilities SETUID and SETGID): run yamlsched"
                " as another user, or set YAMLSCHED_DSN"
            ) from error


@dataclass(frozen=True)
class Location:
    """Where the server keeps its files. ``home`` contains no links. Without an ``account`` the
    current user runs it.
    """

    folder: Path
    home: Path
    account: Account | None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def uid(self) -> int:
        return self.account.uid if self.account else os.geteuid()

    @property
    def name(self) -> str:
        """The server's cluster_name, which the titles of its processes contain."""
        return f"yamlsched-{_short_hash(self.home)}"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def sockets(self) -> Path:
        """The socket's folder. The path of a unix socket is limited, and libpq splits hosts at
        commas.
        """
        here = os.fsencode(self.home / f".s.PGSQL.{PORT}")
        if len(here) <= MAX_SOCKET_BYTES and not any(
            byte < 32 or byte in b",\"'\\" for byte in here
        ):
            return self.home
        return SHORT_HOME / f"{self.name}-{self.uid}"

    @property
    def dsn(self) -> str:
        return f"host='{self.sockets}' port={PORT} dbname=yamlsched user=yamlsched"


def data_folder(schedules_file: Path) -> Path:
    return Path(os.path.realpath(schedules_file.parent)) / ".yamlsched"


def make_folder(folder: Path) -> None:
    """Create ``.yamlsched`` if it is missing, private and ignored by git."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _account(folder)  # a wrong owner is reported before a missing permission
        if not os.path.lexists(folder / ".gitignore"):
            with open_file(folder / ".gitignore") as file:
                file.write(b"*\n")
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot use {folder} for the embedded database: {error.strerror}."
            f" {_name_of(os.geteuid())} must be able to write there; or set YAMLSCHED_DSN to your"
            " own PostgreSQL"
        ) from error


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Yield a descriptor of ``folder``, which must not be a link itself.

    Root may work in the folder of another user, who can replace any name in it at any time. So the
    descriptor is checked and changed, and no name is used twice.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise EnvironmentFailed(
                f"{folder} is a link or a file, and the embedded database needs a folder there:"
                " remove it, or set YAMLSCHED_DSN"
            ) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """Open a file in ``.yamlsched`` for reading and writing. A new one belongs to the folder's
    owner.

    Links are not followed: root may work in another user's folder.
    """
    with _opened(path.parent) as folder:
        # opening a named pipe must not block; the log grows at its end
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path.name, flags | os.O_CREAT, 0o600, dir_fd=folder)
        try:
            owner, status = os.fstat(folder), os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise EnvironmentFailed(f"{path} is not a regular file with one name: remove it")
            if os.geteuid() == 0 and owner.st_uid != status.st_uid:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            return os.fdopen(descriptor, "r+b", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise


def try_lock(file: BinaryIO) -> bool:
    """Lock ``file`` exclusively. Return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locate(folder: Path) -> Location:
    """Return the location of the server of ``folder``, also before its first use."""
    home = folder / "postgres"
    account = _account(folder)
    if account is None:
        return Location(folder, Path(os.path.realpath(home)), None)
    if home.is_symlink():
        home = _link_target(home)
    with contextlib.suppress(FileNotFoundError):
        account = _account(home) if os.path.lexists(home) else account
    return Location(folder, home, account)


def _link_target(link: Path) -> Path:
    """Return the target of ``link``. Raises EnvironmentFailed for a link that root did
    not create.
    """
    target = Path(os.readlink(link))
    if link.lstat().st_uid != 0 or target.parent != SYSTEM_HOME:
        raise EnvironmentFailed(
            f"{link} is a link to {target} that yamlsched did not create, and root does not follow"
            " it: remove it, or run yamlsched as another user"
        )
    return target


def prepare(folder: Path) -> Location:
    """Return the location of the server of ``folder``, with its folders created. The caller holds
    the mutex.
    """
    location = locate(folder)
    account = location.account
    if account is None:
        (folder / "postgres").mkdir(mode=0o700, exist_ok=True)
    elif not location.home.exists():
        location = replace(location, home=_make_home_for(account, folder))
    else:
        _give(location.home, account)  # its creator may have been killed before it did so
    _make_sockets(location)
    return location


def _give(folder: Path, account: Account) -> None:
    """Make ``account`` the owner of a folder that belongs to root. Other folders stay
    as they are.
    """
    with _opened(folder) as descriptor:
        if os.fstat(descriptor).st_uid == 0:
            os.fchown(descriptor, account.uid, account.gid)


def _account(existing: Path) -> Account | None:
    """Return who the server runs as: the owner of ``existing``, but never root. None is the current
    user.
    """
    us = os.geteuid()
    owner, group = us, os.getegid()
    try:
        with _opened(existing) as descriptor:
            status = os.fstat(descriptor)
        owner, group = status.st_uid, status.st_gid
    except FileNotFoundError:
        pass
    except PermissionError:
        owner = existing.lstat().st_uid
    if us == owner != 0:
        return None
    if us != 0:
        raise EnvironmentFailed(
            f"{existing} belongs to {_name_of(owner)}, but you are {_name_of(us)}: run as"
            f" {_name_of(owner)}, or set YAMLSCHED_DSN"
        )
    if owner != 0:
        return Account(owner, group, _name_of(owner))
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, name)
    raise EnvironmentFailed(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as: "
        "run yamlsched as another user, or set YAMLSCHED_DSN"
    )


def _make_home_for(account: Account, folder: Path) -> Path:
    account.can("cd", Path("/"))  # raises if root cannot switch users at all
    home = folder / "postgres"
    with _opened(folder) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid == 0 and stat.S_IMODE(status.st_mode) == 0o700:
            os.fchown(descriptor, 0, account.gid)
            os.fchmod(descriptor, 0o710)  # the server's user may enter it, but not list it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(home.name, dir_fd=descriptor)  # a link to data that was removed
        if account.can("cd", folder):
            os.mkdir(home.name, mode=0o700, dir_fd=descriptor)
            target = home
        else:
            target = SYSTEM_HOME / _short_hash(folder)
            SYSTEM_HOME.mkdir(mode=0o755, exist_ok=True)
            text = (
                f"user {account.name}, who runs the embedded PostgreSQL for root, cannot reach"
                f" {folder}: the data is stored in {target}"
            )
            log.message("warning", "database.message", f"yamlsched: {text}", message=text)
            target.mkdir(mode=0o700, exist_ok=True)
            os.symlink(target, home.name, dir_fd=descriptor)
    _give(target, account)
    return target


def _make_sockets(location: Location) -> None:
    folder = location.sockets
    if folder == location.home:
        return
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if location.account and folder.lstat().st_uid == 0:
        os.chown(folder, location.account.uid, location.account.gid, follow_symlinks=False)
    # Every user may create folders in /tmp, so the owner must be checked.
    status = folder.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != location.uid
        or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise EnvironmentFailed(
            f"{folder}, the folder for the embedded PostgreSQL's socket, is not private to "
            f"{_name_of(location.uid)}: remove it, or move schedules.yaml to a shorter path"
        )


def require_name(account: Account | None) -> None:
    """Raise EnvironmentFailed if initdb would run as a user without a name, which it refuses."""
    uid = os.geteuid() if account is None else account.uid
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise EnvironmentFailed(
            f"PostgreSQL cannot be created by user {uid}, which has no name: run yamlsched as a"
            " user of /etc/passwd, or set YAMLSCHED_DSN"
        ) from None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
