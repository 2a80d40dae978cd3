"""The permits of the concurrency limit of a host, shared by all workers of one schedule through
lock files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule import file as schedule_file

CRON_UNSENT = "cron-unsent"
"""The file, beside the locks, of errors that a later ``tick --cron`` prints."""


class ConcurrencyPermits:
    """At most ``count`` permits are held at once by all processes that share the file ``path``;
    None: by this one, which shares none with others.

    A permit is a lock on a byte of it: the kernel frees it when its holder dies, however it dies.
    """

    def __init__(self, path: Path | None, count: int) -> None:
        self.count, self._path = count, path
        self._descriptor: int | None = None
        self._held: set[int] = set()

    @property
    def held(self) -> int:
        """How many permits this process holds."""
        return len(self._held)

    def fill(self, wanted: int) -> int:
        """Take free permits until ``wanted`` are held; return how many are. Raises
        EnvironmentFailed.
        """
        for byte in range(self.count):
            if len(self._held) >= wanted:
                break
            if byte not in self._held and self._lock(byte):
                self._held.add(byte)
        return len(self._held)

    def _lock(self, byte: int) -> bool:
        if self._path is None:
            return True
        try:
            if self._descriptor is None:
                # a cleanup of temporary files may have removed its folder
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise EnvironmentFailed(f"{self._path} cannot be opened: {error.strerror}") from error
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            return True
        return False

    def shrink(self, wanted: int) -> None:
        """Free permits until no more than ``wanted`` are held."""
        while len(self._held) > wanted:
            byte = self._held.pop()
            if self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)
        if not self._held and self._descriptor is not None:
            os.close(self._descriptor)  # opened again: a cleanup may have removed the file
            self._descriptor = None


def permit_folder(file: Path) -> Path:
    """Return the folder of lock files of the schedule ``file``, made if missing: the same for all
    its processes.

    It is below the temporary directory, or below the home directory if another user has taken its
    name there. Raises EnvironmentFailed when neither can be used.
    """
    place = (  # links stay: all releases share the limit
        f"{socket.gethostname()}:{schedule_file.absolute(file)}"
    )
    name = f"permits-{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}"
    faults = []
    for root in _roots():
        try:
            for path in (root, root / name):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if path.is_symlink() or path.stat().st_uid != os.getuid():
                    raise PermissionError(None, "belongs to another user", str(path))
            return root / name
        except OSError as error:
            faults.append(f"{error.filename}: {error.strerror}")
    raise EnvironmentFailed(
        f"no folder for lock files ({'; '.join(faults)}): set TMPDIR to a folder that this user may"
        " write to"
    )


def _roots() -> Iterator[Path]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:
        temporary = os.environ.get("TMPDIR", "/tmp")  # for the message: it cannot be written to
    yield Path(temporary) / f"yamlsched-{os.getuid()}"
    home = Path(os.path.expanduser("~"))
    if home.is_absolute():  # a user without a name has none
        yield home / ".cache" / "yamlsched"


def default_concurrency() -> int:
    """Return the default concurrency limit: the number of cores, at least 4."""
    return max(4, os.cpu_count() or 1)
