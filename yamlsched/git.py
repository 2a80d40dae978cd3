"""Runs git in a repository that may belong to anybody: with a clean environment, for a bounded time
and output.

Only plumbing is called, which starts no program that the configuration of a repository names: no
hook, filter, pager or transport. git's own check of who owns the repository stays: a folder above
the file may belong to anybody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MAX_GIT_BYTES = 65_536
KEPT_VARIABLES = ("PATH", "HOME", "XDG_CONFIG_HOME", "SUDO_UID")
"""What git needs: to be found, to read the settings of its user, and to accept the repository of
who called sudo.
"""
SETTINGS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    # for releases before GIT_NO_LAZY_FETCH: a partial clone fetches nothing
    "GIT_ALLOW_PROTOCOL": "none",
}
OPTIONS = ("--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


class GitOutput(NamedTuple):
    """What git printed, and its exit code."""

    code: int
    output: bytes
    errors: bytes

    @property
    def is_of_another_user(self) -> bool:
        """Whether git has refused to read a repository because of its owner."""
        return b"dubious ownership" in self.errors


def blob_id(data: bytes, like: str) -> str:
    """Return the id that git gives to a content, in the format of the id ``like``."""
    kind = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return kind(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def run(
    folder: Path,
    environment: Mapping[str, str],
    deadline: float,
    *arguments: str,
    max_bytes: int = MAX_GIT_BYTES,
) -> GitOutput | None:
    """Run git in ``folder`` until ``deadline``, on the monotonic clock.

    None: it took too long, or printed ``max_bytes`` or more, and was killed. Raises
    FileNotFoundError if git is not installed, and ValueError for arguments that the system does not
    accept.
    """
    words = ["git", *OPTIONS, "-C", str(folder), *arguments]
    kept = {name: environment[name] for name in KEPT_VARIABLES if name in environment}
    process = subprocess.Popen(
        [os.fsencode(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, **SETTINGS},
        cwd="/",
        start_new_session=True,
    )
    printed = _output(process, deadline, max_bytes)
    return None if printed is None else GitOutput(process.returncode, *printed)


def _output(
    process: subprocess.Popen[bytes], deadline: float, max_bytes: int
) -> tuple[bytes, bytes] | None:
    """Return what a process prints to stdout and stderr until it ends. None: it did not end, and
    was killed.

    It is not waited for after that: nothing ends a process that waits for a file system.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for descriptor in read:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and max(map(len, read.values())) < max_bytes:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                part = os.read(key.fd, MAX_GIT_BYTES)
                read[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
        is_whole = not selector.get_map()
        printed, errors = map(bytes, read.values())
    with contextlib.suppress(subprocess.TimeoutExpired):
        if is_whole:
            process.wait(max(0.0, deadline - time.monotonic()))
            return printed, errors
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.1)
    return None
