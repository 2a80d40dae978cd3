"""Warnings about what a job passes on: its command, env and payload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import basename

from yamlsched.schedule.job import Job
from yamlsched.schedule.lint import Linter
from yamlsched.schedule.node import Spot
from yamlsched.secret_forms import mask_command, mask_value
from yamlsched.text import quoted

CALLS_PROGRAM = re.compile(
    r"(subprocess|builtins|runpy|pty|code|posix)[.:].+"
    r"|os[.:](system|popen|exec[a-z]*|spawn[a-z]*|posix_spawnp?)"
)
"""Handlers that execute programs or code given to them."""
VARIABLES = {"env": re.compile(r"\$\{?[A-Z_]"), "payload": re.compile(r"\$\{[A-Z_]")}
"""What looks like a variable for a shell. A payload may well have $USD."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "busybox")
OWN_SYNTAX = ("awk", "gawk", "mawk", "sed", "jq", "perl", "envsubst")
"""Programs whose arguments may begin like variables of a shell."""
SHELL_SYNTAX = re.compile(
    r"[0-9]?(\||\|\||&|&&|;|>|>>|<|<<|>&[0-9]|&>)|(\$[A-Za-z_{(]|`|~/).*", re.S
)


def executes_payload(linter: Linter, job: Job) -> None:
    if job.handler is not None and CALLS_PROGRAM.fullmatch(job.handler):
        spot = linter.loaded.spot(job.name, "handler")
        message = (
            f"{spot}: {job.handler} executes its payload, which anyone who can enqueue can choose"
        )
        remedy = "Write command: [program, argument] instead of the handler."
        linter.findings.warning(spot, "YS421", message, remedy)


def secrets(linter: Linter, job: Job) -> None:
    """Report what looks like a secret in the values that a job passes on."""

    def warn(spot: Spot, at: Spot) -> None:
        message = (
            f"{spot} looks like a secret: it is stored in git, and unencrypted in the database"
        )
        remedy = "Read it from a file such as ~/.pgpass, or from the environment of the worker."
        linter.findings.warning(at, "YS409", message, remedy)

    masked = mask_command(job.command)
    for nth, (word, shown) in enumerate(zip(job.command, masked, strict=True)):
        if word != shown:
            spot = linter.loaded.spot(job.name, "command").child(nth)
            warn(spot, spot)
    for key in VARIABLES:
        top = linter.loaded.written(job.name, key) if getattr(job, key) else None
        for spot in _strings(top) if top else ():
            name = spot.path[-1]
            if VARIABLES[key].search(spot.value):
                message = f"{spot}: {quoted(spot.value)} is passed as it is: nothing expands it"
                remedy = "Write the value, or read the variable in the handler or program."
                linter.findings.warning(spot, "YS423", message, remedy)
            elif mask_value(name if isinstance(name, str) else "", spot.value) != spot.value:
                warn(spot, spot.key)


def _strings(spot: Spot) -> Iterator[Spot]:
    """Yield the strings in a value."""
    if isinstance(spot.value, str):
        yield spot
    for child in spot.children():
        yield from _strings(child)


def shell_syntax(linter: Linter, job: Job) -> None:
    """Report what only a shell would act on, in a command without one."""
    if not job.command or basename(job.command[0]) in (*SHELLS, *OWN_SYNTAX):
        return
    for item in linter.loaded.spot(job.name, "command").children():
        if SHELL_SYNTAX.fullmatch(item.value):
            message = (
                f"{item}: {quoted(item.value)} is passed to the program as it is, because no shell"
                " reads it"
            )
            remedy = "For a shell, write [/bin/sh, -c, '...']."
            linter.findings.warning(item, "YS423", message, remedy)
