"""Warnings about the jobs of a file together, and about commands."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from os.path import basename

from yamlsched.schedule.job import Job
from yamlsched.schedule.lint import Linter
from yamlsched.schedule.load import Calls
from yamlsched.schedule.node import Spot
from yamlsched.text import quoted
from yamlsched.timetable.cron import matching_days

MIN_CROWD_JOBS = 5
"""At least this many jobs that start in the same minute are reported."""
MAX_NAMED = 4
MAX_TIMES_A_DAY = 24
REFERENCE_YEAR = 2024
"""The dates of cron expressions are compared in this leap year, whenever the file is checked."""
EVERY_DAY = ("*", "*", "*")


def crowded_minutes(linter: Linter) -> None:
    """Report minutes in which many jobs start. Jobs that start every few minutes are
    not counted.
    """
    by_minute: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in linter.loaded.jobs.values():
        if (
            job.cron is not None
            and not job.after
            and job.enabled
            and not job.spread
            and len(job.cron.times) <= MAX_TIMES_A_DAY
        ):
            for expression in job.cron.expressions:
                for minute in expression.times:
                    by_minute[job.timezone, minute].append(replace(job, cron=expression))
    seen: set[tuple[str, ...]] = set()
    for (timezone, minute), jobs in sorted(by_minute.items()):
        together = _on_busiest_date(jobs) if len(jobs) >= MIN_CROWD_JOBS else []
        names = tuple(job.name for job in together)
        if len(together) < MIN_CROWD_JOBS or names in seen:
            continue
        seen.add(names)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        others = ", ".join(names[1:MAX_NAMED]) + more
        is_daily = all(
            job.cron is not None and job.cron.date_fields == EVERY_DAY for job in together
        )
        when = (
            f"{minute // 60:02d}:{minute % 60:02d} {timezone}{'' if is_daily else ' on some days'}"
        )
        message = f"{len(names)} jobs start at {when}, also {others}"
        linter.warn_about_cron(
            "YS405", together[0], None, message, "Add spread: 10m to them, or choose other minutes."
        )


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


def _on_busiest_date(jobs: list[Job]) -> list[Job]:
    """Return the jobs that fire on the first date of the year on which most of them do."""
    fields = {job.name: job.cron.date_fields for job in jobs if job.cron is not None}
    on_date: Counter[tuple[int, int]] = Counter()
    for date_fields, count in Counter(fields.values()).items():
        for month in range(1, 13):
            for day in matching_days(date_fields, REFERENCE_YEAR, month):
                on_date[month, day] += count
    if not on_date:
        return []
    month, day = min(on_date, key=lambda date: (-on_date[date], date))
    return [job for job in jobs if day in matching_days(fields[job.name], REFERENCE_YEAR, month)]


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
    if "sudo" in programs:
        message = (
            f"{spot}: a worker may be unable to stop what sudo starts, and sudo may ask for a"
            " password"
        )
        linter.findings.warning(
            at, "YS424", message, "Run the worker as that user, with a namespace of its own."
        )
    if "flock" in programs:
        message = f"{spot}: flock excludes runs on one host, overlap excludes them on all hosts"
        linter.findings.warning(
            at, "YS425", message, "Remove flock, and write overlap: skip, or overlap: wait."
        )
    if RANDOM_SLEEP.search(" ".join(calls.command)):
        message = f"{spot}: a random sleep holds a worker, and moves with every attempt"
        linter.findings.warning(
            at, "YS426", message, "Remove it, and write spread: 1h for example."
        )


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
