"""Whether the programs of commands can be started on this host."""

from __future__ import annotations

import os
import shutil
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import NamedTuple

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Calls, Loaded
from yamlsched.schedule.source import Diagnostic
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
    message = f"{_shown(written)} is not a directory that can be entered"
    return Obstacle(message, "Create it, permit it, or correct cwd.")


def program_obstacle(program: str, folder: str, search_path: str) -> Obstacle | None:
    """Return why ``program`` cannot be started in ``folder``; None if nothing is known against it.

    A name without a slash is searched in the directories of ``search_path``, as PATH lists them.
    """
    if not program:
        return Obstacle(
            "the program is an empty string", "Write its name first: [program, argument]."
        )
    if "/" not in program:
        places = (os.path.join(folder, entry) for entry in search_path.split(os.pathsep))
        is_there = shutil.which(program, path=os.pathsep.join(places))
        return None if is_there else _not_on_path(program, search_path)
    path = os.path.join(folder, program)
    if not exists(path):
        if " " in program:
            return Obstacle(
                f"{_shown(program)} does not exist", "Write each argument as an item of its own."
            )
        return Obstacle(
            f"{_shown(program)} does not exist or cannot be reached",
            "Correct the path, or install the program on this host.",
        )
    if not isfile(path):
        return Obstacle(f"{_shown(program)} is not a file", "Write the path of the program.")
    if not os.access(path, os.X_OK):
        return Obstacle(f"{_shown(program)} is not executable", f"Run: chmod +x {program}")
    return _script_obstacle(program, path)


def _not_on_path(program: str, search_path: str) -> Obstacle:
    if " " in program:
        return Obstacle(
            f"there is no program {_shown(program)}", "Write each argument as an item of its own."
        )
    message = f"there is no program {_shown(program)} in PATH"
    path = truncate(search_path, MAX_SHOWN_PATH_CHARS)
    return Obstacle(
        message, f"Install it, write its full path, or set PATH in env (PATH is {path})."
    )


def _script_obstacle(program: str, path: str) -> Obstacle | None:
    """Return an obstacle if a script does not begin with #!, or names an interpreter that does not
    exist.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(MAX_FIRST_LINE_BYTES)
    except OSError:
        return None  # a program may be executable and not readable
    if not start.startswith(b"#!"):
        if b"\0" in start:  # not text
            return None
        return Obstacle(
            f"{_shown(program)} has no #! line", "Begin it with a line such as #!/bin/sh"
        )
    line = start[2:].partition(b"\n")[0].decode("utf-8", "replace")
    interpreter = line.strip(" \t\n").split(" ")[0].split("\t")[0]
    if exists(interpreter):
        return None
    message = (
        f"the first line of {_shown(program)} names {_shown(interpreter)}, which does not exist"
    )
    return Obstacle(message, "Correct that line and its line ending, or install the interpreter.")


def check(loaded: Loaded, file: Path, only: Calls | None = None) -> list[Diagnostic]:
    """Return what keeps the commands of enabled jobs, or of one, from being started on this host.

    A name that is not in PATH is a warning: the PATH of the worker may be another one.
    """
    findings, folder = Findings(loaded.source), str(file.resolve().parent)
    for calls in loaded.calls if only is None else (only,):
        if findings.is_full:
            break
        _check_calls(loaded, calls, folder, findings)
    return findings.diagnostics()


def _check_calls(loaded: Loaded, calls: Calls, home: str, findings: Findings) -> None:
    """Report what is wrong with one job's command, in a file in the folder ``home``."""
    job = loaded.jobs.get(calls.job)
    if not calls.command or (job is not None and not job.enabled):
        return
    program, env = calls.command[0], calls.env or {}
    folder = os.path.join(home, calls.cwd or "")
    spot = loaded.spot(calls.job, "command").child(0)
    if obstacle := directory_obstacle(folder, calls.cwd or folder):
        at = loaded.spot(calls.job, "cwd") if calls.cwd else spot
        findings.error(at, "YS311", f"{at}: {obstacle.message}", obstacle.remedy)
    elif obstacle := program_obstacle(
        program, folder, env.get("PATH") or os.environ.get("PATH") or os.defpath
    ):
        is_name = "/" not in program and bool(program)
        if is_name and len(calls.command) == 1 and " " in program:
            return  # a whole command line, which is a warning of its own
        report, code = (findings.warning, "YS422") if is_name else (findings.error, "YS310")
        report(spot, code, f"{spot}: {obstacle.message}", obstacle.remedy)
