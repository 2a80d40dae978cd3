"""The child slots of a host, shared by all ticks and workers of one schedule through lock files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from yamlsched.errors import EnvironmentFailed


class HostSlots:
    """At most ``count`` slots are held at once by all processes that share ``folder``.

    A slot is a lock on a file: the kernel frees it when its holder dies, however it dies.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._paths = [folder / f"slot-{n}" for n in range(count)]
        self._held: dict[int, int] = {}

    @property
    def held(self) -> int:
        """How many slots this process holds."""
        return len(self._held)

    def fill(self, wanted: int) -> int:
        """Take free slots until ``wanted`` are held; return how many are."""
        for n, path in enumerate(self._paths):
            if len(self._held) >= wanted:
                break
            if n in self._held:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                self._held[n] = descriptor
        return len(self._held)

    def shrink(self, wanted: int) -> None:
        """Free slots until no more than ``wanted`` are held."""
        while len(self._held) > wanted:
            os.close(self._held.popitem()[1])


def folder_for(file: Path) -> Path:
    """Return the folder of lock files of the schedule ``file``, made if missing: the same for all its processes.

    Raises EnvironmentFailed when somebody else owns it.
    """
    name = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    root = Path(tempfile.gettempdir()) / f"yamlsched-{os.getuid()}"
    folder = root / f"slots-{name}"
    for path in (root, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            raise EnvironmentFailed(f"{path} belongs to somebody else: remove it, or set TMPDIR")
    return folder


def default_count() -> int:
    """Return the usual number of slots: the cores, at least 4."""
    return max(4, os.cpu_count() or 1)
