"""Runs git in a repository that may belong to anybody: with a clean environment, and a time limit.

Only plumbing is called, which starts no program that the configuration of a repository names: no
hook, filter, pager or transport. git's own check of who owns the repository stays: a folder above
the file may belong to anybody.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
    folder: Path, environment: Mapping[str, str], deadline: float, *arguments: str
) -> GitOutput | None:
    """Run git in ``folder`` until ``deadline``, on the monotonic clock.

    None: it took too long, and was killed. Raises FileNotFoundError if git is not installed, and
    ValueError for arguments that the system does not accept.
    """
    words = ["git", *OPTIONS, "-C", str(folder), *arguments]
    kept = {name: environment[name] for name in KEPT_VARIABLES if name in environment}
    with subprocess.Popen(
        [os.fsencode(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, **SETTINGS},
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            printed = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    return GitOutput(process.returncode, *printed)
