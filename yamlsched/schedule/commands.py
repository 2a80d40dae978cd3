"""Whether the programs of commands can be started on this host."""

from __future__ import annotations

import os
import re
import shutil
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import NamedTuple

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Loaded
from yamlsched.text import quoted, truncate

MAX_FIRST_LINE_BYTES = 256
MAX_SHOWN_CHARS = 200
MAX_SHOWN_PATH_CHARS = 60
"""Of PATH, in a message: cron's is short and matters, that of a login shell is long and would hide
the message.
"""


def _shown(text: str) -> str:
    return quoted(text, MAX_SHOWN_CHARS)


class Obstacle(NamedTuple):
    """Why a program cannot be started, and what to do about it."""

    message: str
    remedy: str


def directory_obstacle(folder: str, written: str) -> Obstacle | None:
    """Return why no program can be started in ``folder``, which messages call ``written``; None if
    one can.
    """
    if isdir(folder) and os.access(folder, os.X_OK):
        return None
    message = f"{_shown(written)} is not a directory that this user can enter"
    return Obstacle(message, "Create it, let this user enter it, or correct cwd.")


def program_obstacle(program: str, folder: str, search_path: str) -> Obstacle | None:
    """Return why ``program`` cannot be started in ``folder``; None if nothing is known against it.

    A name without a slash is searched in the directories of ``search_path``, as PATH lists them.
    """
    items = "Write each argument as an item of its own." if " " in program or not program else ""
    if "/" not in program:
        places = [os.path.join(folder, entry) for entry in search_path.split(os.pathsep)]
        path = shutil.which(program, path=os.pathsep.join(places)) or ""
        if not path:
            shown = truncate(search_path, MAX_SHOWN_PATH_CHARS)
            message = f"there is no program {_shown(program)} in PATH"
            remedy = f"Install it here, write its full path, or set PATH in env (PATH is {shown})."
            return Obstacle(message, items or remedy)
    else:
        path = os.path.join(folder, program)
        if not exists(path):
            message = f"{_shown(program)} does not exist or cannot be reached"
            remedy = "Correct the path, or install the program on this host."
            return Obstacle(message, items or remedy)
    if not isfile(path) or not os.access(path, os.X_OK):
        message = f"{_shown(program)} is not an executable file"
        return Obstacle(message, f"Correct the path, or run: chmod +x {program}")
    return _script_obstacle(program, path)


def _script_obstacle(program: str, path: str) -> Obstacle | None:
    """Return an obstacle if a script does not begin with #! and an interpreter that exists."""
    try:
        with open(path, "rb") as file:
            start = file.read(MAX_FIRST_LINE_BYTES)
    except OSError:
        return None  # a program may be executable and not readable
    if not start.startswith(b"#!"):
        if b"\0" in start:  # not text
            return None
        remedy = "Start it with a line such as #!/bin/sh"
        return Obstacle(f"{_shown(program)} has no #! line", remedy)
    line = start[2:].partition(b"\n")[0].decode("utf-8", "replace")
    interpreter = re.split("[ \t]", line.strip(" \t"))[0]
    if exists(interpreter):
        return None
    message = (
        f"the first line of {_shown(program)} names {_shown(interpreter)}, which does not exist"
    )
    return Obstacle(
        message, "Correct that line (does it end with CR LF?), or install the interpreter."
    )


def check(loaded: Loaded, file: Path, findings: Findings) -> None:
    """Report what keeps the commands of enabled jobs from being started on this host.

    A name that is not in PATH is a warning: the PATH of the worker may be another one.
    """
    home = str(file.resolve().parent)
    for job in loaded.served_jobs:
        if not job.command or not job.enabled:
            continue
        program, folder = job.command[0], os.path.join(home, job.cwd or "")
        path = job.env.get("PATH") or os.environ.get("PATH") or os.defpath
        spot = loaded.spot(job.name, "command").child(0)
        if obstacle := directory_obstacle(folder, job.cwd or folder):
            findings.error(spot, "YS311", f"{spot}: {obstacle.message}", obstacle.remedy)
        elif obstacle := program_obstacle(program, folder, path):
            is_name = bool(program) and "/" not in program
            report, code = (findings.warning, "YS422") if is_name else (findings.error, "YS310")
            report(spot, code, f"{spot}: {obstacle.message}", obstacle.remedy)
