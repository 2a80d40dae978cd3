"""Which processes of the operating system belong to the server.

They are recognized by owner and command line, which every user may read. /proc/<pid>/cwd would be
stricter, but root in a container may not read it for another user's process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from yamlsched.extras.embedded.location import PORT, Location

PROC = Path("/proc")


@dataclass(frozen=True)
class PidFile:
    """What the server wrote to postmaster.pid."""

    pid: int
    status: str


def read_pid_file(location: Location) -> PidFile | None:
    try:
        lines = (location.data / "postmaster.pid").read_text(errors="replace").splitlines()
        return PidFile(abs(int(lines[0])), lines[7].strip() if len(lines) > 7 else "")
    except (OSError, ValueError, IndexError):
        return None


def postmaster(location: Location) -> int | None:
    """Return the pid of the server's main process, if the process in postmaster.pid is that
    process.
    """
    pid_file = read_pid_file(location)
    if pid_file and f" -D {location.data} " in _command(pid_file.pid, location.uid) + " ":
        return pid_file.pid
    return None


def kill_orphans(location: Location) -> None:
    """Kill the backends of a killed server that are too busy to notice its end.

    No data is lost: the next start recovers from the log, as after a kill of the server itself.
    """
    for pid in _pids():
        if _command(pid, location.uid).startswith(f"postgres: {location.name}: "):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def forget_reused_pid(location: Location) -> None:
    """Remove the lock files of a killed server whose pid another process has now: PostgreSQL would
    refuse to start.

    A postmaster.pid whose pid is unused stays, because PostgreSQL needs it to find its old shared
    memory.
    """
    (location.sockets / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
    pid_file = read_pid_file(location)
    if pid_file and exists(pid_file.pid):
        (location.data / "postmaster.pid").unlink()


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _command(pid: int, uid: int) -> str:
    """Return the command line of a process of ``uid``, words separated by spaces; empty if there is
    none.
    """
    if not PROC.joinpath("self").exists():
        owner, _, command = _ps("-ww", "-o", "uid=,command=", "-p", str(pid)).strip().partition(" ")
        return command.strip() if owner == str(uid) else ""
    try:
        if (PROC / str(pid)).stat().st_uid != uid:
            return ""
        return (
            os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).rstrip("\0").replace("\0", " ")
        )
    except OSError:
        return ""


def _pids() -> Iterator[int]:
    names = (
        [entry.name for entry in PROC.iterdir()]
        if PROC.joinpath("self").exists()
        else _ps("-axo", "pid=").split()
    )
    return (int(name) for name in names if name.isdigit())


def _ps(*words: str) -> str:
    return subprocess.run(["ps", *words], capture_output=True, text=True).stdout
