"""Warnings about the jobs of a file together, and about commands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from os.path import basename

from yamlsched.schedule.job import Job
from yamlsched.schedule.lint import Linter
from yamlsched.schedule.load import Calls
from yamlsched.schedule.node import Spot
from yamlsched.text import join_first, quoted

MIN_CROWD_JOBS = 5
"""At least this many jobs that start in the same minute are reported."""
MAX_NAMED = 4
MAX_TIMES_A_DAY = 24


def crowded_minutes(linter: Linter) -> None:
    """Report minutes in which many jobs start on the same dates. Jobs that start every few minutes
    are not counted.
    """
    by_start: dict[tuple[str, tuple[str, str, str], int], list[Job]] = defaultdict(list)
    for job in linter.loaded.jobs.values():
        if job.cron is None or job.after or job.spread or not job.enabled:
            continue
        for expression in job.cron.expressions:
            if len(job.cron.times) <= MAX_TIMES_A_DAY:
                for minute in expression.times:
                    by_start[job.timezone, expression.date_fields, minute].append(job)
    seen: set[tuple[str, ...]] = set()
    for (timezone, _, minute), jobs in sorted(by_start.items()):
        names = tuple(job.name for job in jobs)
        if len(names) < MIN_CROWD_JOBS or names in seen:
            continue
        seen.add(names)
        message = (
            f"{len(names)} jobs start at {minute // 60:02d}:{minute % 60:02d} {timezone}, also"
            f" {join_first(names[1:], MAX_NAMED - 1)}"
        )
        remedy = "Add spread: 10m to them, or choose other minutes."
        linter.warn_about_cron("YS405", jobs[0], None, message, remedy)


def ending_calendars(linter: Linter) -> None:
    """Report calendars in use that are complete for a short time only: after it, what they skip
    runs.
    """
    used = {
        calendar.name: calendar
        for job in linter.loaded.jobs.values()
        for calendar in (*job.skip_on, *job.only_on)
    }
    for calendar in used.values():
        spot = (
            linter.loaded.root.get("calendars", calendar.name, "until")
            if linter.loaded.root
            else None
        )
        if spot is not None and (what := calendar.ends_soon(linter.now)):
            linter.findings.warning(
                spot, "YS433", what, "Add the dates that follow, and a later until."
            )


SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash", "busybox"}
OWN_SYNTAX = {"awk", "gawk", "mawk", "sed", "jq", "perl", "envsubst"}
"""Programs whose arguments may begin like variables of a shell."""
WRAPPERS = {
    "env",
    "exec",
    "nice",
    "ionice",
    "nohup",
    "time",
    "chronic",
    "timeout",
    "setsid",
    "stdbuf",
}
"""Programs that start another one, which their arguments name."""
OPERATOR = re.compile(r"[0-9]?(\||\|\||&|&&|;|>|>>|<|<<|>&[0-9]|&>)")
EXPANSION = re.compile(r"\$[A-Za-z_{(]|`|~/")
RANDOM_SLEEP = re.compile(r"\bsleep\b[^;|&]{0,60}\b(RANDOM|shuf|rand(int|om)?)\b", re.S)
SCRIPT_PARTS = re.compile(r"[;|&\n]+")
PARTS_OF_COMMAND = re.compile(r"[A-Za-z_]\w*=.*|-.*|[0-9.]+[smhd]?")
"""What stands between a wrapper and the program that it starts: variables, options and their
values.
"""


ADVICE = {
    "sudo": (
        "YS424",
        "a worker may be unable to stop what sudo starts, and sudo may ask for a password",
        "Run the worker as that user, with a namespace of its own.",
    ),
    "flock": (
        "YS425",
        "flock prevents overlap on one host only, overlap does on all hosts",
        "Remove flock, and write overlap: skip, or overlap: wait.",
    ),
    "random sleep": (
        "YS426",
        "a random sleep holds a worker, and moves with every attempt",
        "Remove it, and write spread: 1h for example.",
    ),
}
"""What keys of a job do better, by program: the code, the message, the remedy."""


def check(linter: Linter, calls: Calls) -> None:
    """Report what a command needs a shell for, and what keys of the job do better."""
    if not calls.command:
        return
    spot = linter.loaded.spot(calls.job, "command")
    items = list(spot.children())
    script = _script(calls.command)
    if script is None:
        _shell_syntax(linter, spot, items)
    at = spot if script is None else items[script]
    lines = (
        [calls.command]
        if script is None
        else [part.split() for part in _parts(calls.command[script])]
    )
    programs = {program for line in lines for program in _programs(line)}
    if RANDOM_SLEEP.search(" ".join(calls.command)):
        programs.add("random sleep")
    for program, (code, message, remedy) in ADVICE.items():
        if program in programs:
            linter.findings.warning(at, code, f"{spot}: {message}", remedy)


def _script(command: list[str]) -> int | None:
    """Return the position of the script that a shell gets after -c; None if there is none."""
    if basename(command[0]) in SHELLS:
        for position, word in enumerate(command[1:-1], 1):
            if re.fullmatch("-[a-z]*c", word):
                return position + 1
    return None


def _parts(script: str) -> Iterator[str]:
    return (part for part in SCRIPT_PARTS.split(script) if part.strip())


def _programs(words: list[str]) -> Iterator[str]:
    """Yield the program that a command line starts, and those that wrappers start."""
    for word in words:
        if PARTS_OF_COMMAND.fullmatch(word):
            continue
        yield (program := basename(word))
        if program not in WRAPPERS:
            return


def _shell_syntax(linter: Linter, spot: Spot, items: list[Spot]) -> None:
    """Report the first item that only a shell would act on."""
    first = items[0].value
    if " " in first and "/" not in first and len(items) == 1:
        message = f"{items[0]}: {quoted(first)} is a whole command line, and no shell reads it"
        remedy = "Write each argument as an item, or [/bin/sh, -c, '...'] for a shell."
        linter.findings.warning(items[0], "YS423", message, remedy)
        return
    has_own_syntax = basename(first) in OWN_SYNTAX
    for item in items:
        is_expansion = EXPANSION.match(item.value) is not None and not has_own_syntax
        if OPERATOR.fullmatch(item.value) or is_expansion:
            message = (
                f"{item}: {quoted(item.value)} is passed to the program as it is, because no shell"
                " reads it"
            )
            linter.findings.warning(
                item, "YS423", message, "For a shell, write [/bin/sh, -c, '...']."
            )
            return
