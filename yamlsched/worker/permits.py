"""The permits of the concurrency limit of a host, shared by all workers of one schedule through
lock files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from yamlsched.errors import EnvironmentFailed


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
