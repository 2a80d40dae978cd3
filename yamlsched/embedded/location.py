"""Where the embedded database lies, and as which operating system user its server runs.

<folder of schedules.yaml>/.yamlsched/     0700, belongs to whoever used it first
    .gitignore
    mutex          held while starting, stopping, joining and leaving
    users          held shared by everyone who uses the server; lists their pids
    server.lock    held by the server itself: inherited by all its processes
    keep           present while `db start` wants the server to stay
    postgres.log
    postgres/      0700, belongs to the server's user; as root perhaps a link to /var/lib/yamlsched/<hash>
        data/
        .s.PGSQL.5432
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from yamlsched.errors import EnvironmentFailed

SYSTEM_HOME = Path("/var/lib/yamlsched")
SHORT_HOME = Path("/tmp")  # not TMPDIR: cron and a shell must come to the same socket
PORT = 5432  # only part of the socket's name
MAX_SOCKET_BYTES = 103  # bytes; Linux takes 107, macOS 103


@dataclass(frozen=True)
class Account:
    """An operating system user other than us; only root gets to use one."""

    uid: int
    gid: int
    name: str

    def as_popen(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can(self, command: str, path: Path) -> bool:
        """Try it, rather than compute it from modes: access lists and mount options count too."""
        import subprocess

        words = ["/bin/sh", "-c", f'{command} "$1"', "sh", os.fspath(path)]
        try:
            return subprocess.run(words, cwd="/", stderr=subprocess.DEVNULL, **self.as_popen()).returncode == 0
        except PermissionError as error:
            raise EnvironmentFailed(
                f"PostgreSQL does not run as root, and root may not become {self.name} here (a container without the "
                "capabilities SETUID and SETGID?): run yamlsched as another user, or set YAMLSCHED_DSN"
            ) from error


@dataclass(frozen=True)
class Location:
    """``home`` is free of links; ``account`` is None where the server runs as ourselves."""

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
        """What the server's processes call themselves in the list of processes."""
        return f"yamlsched-{_short_hash(self.home)}"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def sockets(self) -> Path:
        """The socket's folder: a unix socket's path is short, and libpq splits a host at commas."""
        here = os.fsencode(self.home / f".s.PGSQL.{PORT}")
        if len(here) <= MAX_SOCKET_BYTES and not any(byte < 32 or byte in b",\"'\\" for byte in here):
            return self.home
        return SHORT_HOME / f"{self.name}-{self.uid}"

    @property
    def dsn(self) -> str:
        return f"host='{self.sockets}' port={PORT} dbname=yamlsched user=yamlsched"


def data_folder(schedules_file: Path) -> Path:
    return Path(os.path.realpath(schedules_file.parent)) / ".yamlsched"


def make_folder(folder: Path) -> None:
    """Create ``.yamlsched`` if it is missing, closed to others and ignored by git."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _account(folder)  # whose it is comes before what they may do in it
        if not os.path.lexists(folder / ".gitignore"):
            with open_file(folder / ".gitignore") as file:
                file.write(b"*\n")
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot use {folder} for the embedded database: {error.strerror}. {_name_of(os.geteuid())} must be able "
            "to write there; or set YAMLSCHED_DSN to your own PostgreSQL"
        ) from error


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Yield a descriptor of ``folder``, whose last part must not be a link.

    Root may be at work in a folder of another user, who can replace any name in it at any time: what is checked and
    changed is the descriptor, never the name a second time.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise EnvironmentFailed(
                f"{folder} is a link or a file, and the embedded database needs a folder there: remove it, "
                "or set YAMLSCHED_DSN"
            ) from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """Open a file in ``.yamlsched`` for reading and writing; created if missing, it belongs to the folder's owner.

    Links are not followed: root may be at work in another user's folder.
    """
    with _opened(path.parent) as folder:
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # not to wait for the writer of a named pipe
        descriptor = os.open(path.name, how | os.O_CREAT, 0o600, dir_fd=folder)
        try:
            owner, found = os.fstat(folder), os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise EnvironmentFailed(f"{path} is not a regular file with one name: remove it")
            if os.geteuid() == 0 and owner.st_uid != found.st_uid:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            return os.fdopen(descriptor, "r+b", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise


def locate(folder: Path) -> Location:
    """Return the location that ``folder`` was given, or what can be said of it before its first use."""
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
    """Return where ``link`` leads. Raises EnvironmentFailed for one that root did not create."""
    target = Path(os.readlink(link))
    if link.lstat().st_uid != 0 or target.parent != SYSTEM_HOME:
        raise EnvironmentFailed(
            f"{link} is a link to {target} that yamlsched did not create, and root does not follow it: remove it, "
            "or run yamlsched as another user"
        )
    return target


def prepare(folder: Path) -> Location:
    """Return the location for ``folder``, made ready for its server; the caller holds the mutex."""
    location = locate(folder)
    account = location.account
    if account is None:
        (folder / "postgres").mkdir(mode=0o700, exist_ok=True)
    elif not location.home.exists():
        location = replace(location, home=_make_home_for(account, folder))
    else:
        _give(location.home, account)  # created, and not given away yet when its creator was killed
    _make_sockets(location)
    return location


def _give(folder: Path, account: Account) -> None:
    """Give a folder of root's to ``account``; one of somebody else's stays as it is."""
    with _opened(folder) as descriptor:
        if os.fstat(descriptor).st_uid == 0:
            os.fchown(descriptor, account.uid, account.gid)


def _account(existing: Path) -> Account | None:
    """Say who the server runs as, given the folder that decides: whoever owns that, and never root."""
    us = os.geteuid()
    owner, group = us, os.getegid()
    try:
        with _opened(existing) as descriptor:
            found = os.fstat(descriptor)
        owner, group = found.st_uid, found.st_gid
    except FileNotFoundError:
        pass
    except PermissionError:
        owner = existing.lstat().st_uid
    if us == owner != 0:
        return None
    if us != 0:
        raise EnvironmentFailed(
            f"{existing} belongs to {_name_of(owner)}, but you are {_name_of(us)}: run as {_name_of(owner)}, "
            "or set YAMLSCHED_DSN"
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
        "PostgreSQL does not run as root, and there is no user postgres or nobody here to run it as: "
        "run yamlsched as another user, or set YAMLSCHED_DSN"
    )


def _make_home_for(account: Account, folder: Path) -> Path:
    account.can("cd", Path("/"))  # where root cannot become another user at all, this says so
    home = folder / "postgres"
    with _opened(folder) as descriptor:
        found = os.fstat(descriptor)
        if found.st_uid == 0 and stat.S_IMODE(found.st_mode) == 0o700:
            os.fchown(descriptor, 0, account.gid)
            os.fchmod(descriptor, 0o710)  # the server's user may pass through, and see nothing
        with contextlib.suppress(FileNotFoundError):
            os.unlink(home.name, dir_fd=descriptor)  # a link to data that somebody has removed
        if account.can("cd", folder):
            os.mkdir(home.name, mode=0o700, dir_fd=descriptor)
            target = home
        else:
            target = SYSTEM_HOME / _short_hash(folder)
            SYSTEM_HOME.mkdir(mode=0o755, exist_ok=True)
            print(
                f"yamlsched: user {account.name}, who runs the embedded PostgreSQL for root, cannot reach {folder}: "
                f"its data goes to {target}",
                file=sys.stderr,
            )
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
    # Anybody may make folders in /tmp: one with our name is ours only if its owner is.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != location.uid or stat.S_IMODE(found.st_mode) & 0o077:
        raise EnvironmentFailed(
            f"{folder}, where the embedded PostgreSQL's socket should go, is not a private folder "
            f"of {_name_of(location.uid)}: remove it, or move schedules.yaml to a shorter path"
        )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _short_hash(path: Path) -> str:
    import hashlib

    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
