"""The JSON Schema of schedules.yaml, which defines what is valid, and the words for its patterns.

``schema_check`` applies it; ``schema_errors`` has the messages.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from yamlsched import durations
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Spot
from yamlsched.text import quoted

Schema = dict[str, Any]

FILE = Path(__file__).with_name("schedules.schema.json")
SCHEMA: Schema = json.loads(FILE.read_text("utf-8"))
JOB_KEYS: Schema = SCHEMA["definitions"]["job"]["properties"]
NAME: str = SCHEMA["properties"]["namespace"]["pattern"]
INCLUDED: Schema = {
    "$schema": SCHEMA["$schema"],
    "title": "A file that schedules.yaml of yamlsched includes, version 1",
    "description": "Jobs, and defaults for them. Paths are relative to the main file.",
    "type": "object",
    "additionalProperties": False,
    "required": ["jobs"],
    "patternProperties": SCHEMA["patternProperties"],
    "properties": {key: SCHEMA["properties"][key] for key in ("defaults", "jobs")},
    "definitions": SCHEMA["definitions"],
}
"""The schema of included files, for editors too."""
INCLUDE: str = SCHEMA["properties"]["include"]["items"]["pattern"]
PATH: str = SCHEMA["properties"]["paths"]["items"]["pattern"]
VARIABLE: str = JOB_KEYS["env"]["propertyNames"]["pattern"]
EXIT_CODE: str = JOB_KEYS["exit_codes"]["properties"]["retry_after"]["propertyNames"]["pattern"]
HANDLER: str = JOB_KEYS["handler"]["pattern"]
DATE: str = JOB_KEYS["starts_on"]["pattern"]
WEEKS: str = JOB_KEYS["every"]["pattern"]
DATES: str = SCHEMA["properties"]["calendars"]["additionalProperties"]["properties"]["dates"][
    "items"
]["pattern"]


def needed_keys(dependency: Any) -> tuple[str, ...]:
    """Return the keys without one of which a key has no effect, from its entry in
    ``dependencies``.
    """
    choices = (
        [choice["required"] for choice in dependency["anyOf"]]
        if isinstance(dependency, dict)
        else [dependency]
    )
    return tuple(name for [name] in choices)


WHOLE_JOB: Schema = SCHEMA["definitions"]["whole_job"]
NEEDED_KEYS = {key: needed_keys(needed) for key, needed in WHOLE_JOB["dependencies"].items()}
"""By key of a job: those without one of which it has no effect."""
MAX_GUESS_CHARS = 300
"""For a longer string, no correction is suggested."""

UNITS = {"w": 604800, **durations.UNITS}
ENDINGS = "eeks?|ays?|ours?|rs?|inutes?|ins?|econds?|ecs?"
SPELLED = rf"\s*([0-9]{{1,9}}(?:\.[0-9]{{1,3}})?)\s*([wdhms])(?:{ENDINGS})?[\s,]*"


MAX_DURATION = timedelta(days=3650)
"""The maximum of every duration, so that no instant overflows."""
RETRY_DELAYS = ("delay", "max_delay", "delays", "retry_after")
LIMITS = {
    **dict.fromkeys(
        (*RETRY_DELAYS, "timeout", "start_within", "finish_within", "expires_after"),
        (timedelta(seconds=1), MAX_DURATION),
    ),
    "lease": (timedelta(seconds=2), MAX_DURATION),
    "catchup_window": (timedelta(minutes=1), MAX_DURATION),
    "spread": (timedelta(0), timedelta(hours=24)),
    "kill_after": (timedelta(0), timedelta(hours=1)),
    "start_timeout": (timedelta(seconds=10), MAX_DURATION),
}


def check_length(spot: Spot, findings: Findings) -> None:
    """Report a duration that is out of range, which no schema can express."""
    value, path = durations.parse(spot.value), [*spot.path]
    if "retry_after" in path:
        path.pop()  # an exit code
    name = next(key for key in reversed(path) if isinstance(key, str))
    low, high = LIMITS.get(name, (timedelta(0), MAX_DURATION))
    if low <= value <= high:
        return
    reason = f"is too long; at most {durations.show(high)} is allowed"
    bound = f"{durations.show(high)} or less"
    if value < low:
        reason = f"is too short; at least {durations.show(low)} is needed"
        bound = f"{durations.show(low)} or more"
    findings.error(spot, "YS111", f"{spot}: {spot.value} {reason}", f"Write {bound}.")


def not_a_duration(spot: Spot, findings: Findings) -> None:
    text = str(spot.value).strip()
    guess = _guess_duration(text)
    if re.fullmatch("[0-9]+", text):
        reason, remedy = (
            f"{quoted(text)[1:-1]} has no unit",
            f"Write {text}s for seconds or {text}m for minutes.",
        )
    else:
        reason, remedy = (
            f"{quoted(text)} is not a duration",
            "Write for example 90s, 5m, 1h30m or 2d.",
        )
    remedy = f'Did you mean "{guess}"?' if guess else remedy
    findings.error(spot, "YS107", f"{spot}: {reason}", remedy)


def _guess_duration(text: str) -> str:
    """Return the duration that ``5 minutes``, ``1.5h`` or ``2w`` mean, or "".

    >>> _guess_duration("1 hour 30 min"), _guess_duration("90")
    ('1h30m', '')
    """
    text = text.lower().replace(" and ", " ")
    if len(text) > 50 or not re.fullmatch(rf"({SPELLED})+", text):
        return ""
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(SPELLED, text))
    if seconds != int(seconds) or seconds > 10**9:
        return ""
    return durations.show(timedelta(seconds=seconds))


HOOKS = ("on_dead", "on_failure", "on_success")


def hook_remedy(value: Any) -> str:
    """Return what to write in a list of hooks instead of ``value``, which is not a job's name."""
    handler = value if isinstance(value, str) and re.fullmatch(HANDLER, value) else "..."
    return f"A hook is a job: write page_owner: {{handler: {handler}}}, and its name: [page_owner]"


def not_a_name(spot: Spot, findings: Findings) -> None:
    text = str(spot.value)
    if spot.path[-2:-1] and spot.path[-2] in HOOKS and re.fullmatch(HANDLER, text):
        message = f"{spot}: {text} is the path of a function, and not the name of a job"
        findings.error(spot, "YS163", message, hook_remedy(text))
        return
    words = unicodedata.normalize("NFKD", text.lower().replace("ß", "ss"))
    ascii_text = words.encode("ascii", "ignore").decode()
    better = re.sub("_+", "_", re.sub("[^a-z0-9_]", "_", ascii_text)).strip("_")[:63]
    message = f"{quoted(text)} is not a valid name: a-z, then a-z, 0-9 and _, at most 63 characters"
    remedy = (
        f'Write "{better}".' if re.fullmatch(NAME, better) else "Write for example cleanup_nightly."
    )
    findings.error(spot, "YS106", message, remedy)


def not_a_handler(spot: Spot, findings: Findings) -> None:
    text = str(spot.value)
    # the expressions below are not linear-time
    guessed_from = text.strip() if len(text) <= MAX_GUESS_CHARS else ""
    better = (
        re.sub(r"\(.*\)$", "", guessed_from).replace("/", ".").removeprefix(".").removeprefix(".")
    )
    better = re.sub(r"\.py(?=[:.]|$)", "", better).replace("::", ":")
    remedy = "Write package.module.function."
    if re.fullmatch(HANDLER, better) and better != text:
        remedy = f'Write "{better}".'
        if re.search(r"\.py(\(.*)?$", guessed_from):
            remedy = f'Write "{better}.run", with the name of the function.'
    findings.error(spot, "YS301", f"{spot}: {quoted(text)} is not the path of a function", remedy)


def not_a_tag(spot: Spot, findings: Findings) -> None:
    message = f"{spot}: {quoted(spot.value)} is not a valid tag"
    findings.error(spot, "YS106", message, "Use at most 63 letters, digits and . _ : / - only.")


def not_a_relative_path(spot: Spot, findings: Findings) -> None:
    reason = f": {quoted(spot.value)} is an absolute path" if spot.value else " is empty"
    findings.error(
        spot,
        "YS118",
        f"{spot}{reason}",
        "Write a path relative to this file, such as src or ../lib.",
    )


def not_a_pattern(spot: Spot, findings: Findings) -> None:
    written = str(spot.value)
    names = written.split("/")
    if written.startswith("/"):
        reason, remedy = "is an absolute path", "Write it relative to this file: jobs/*.yaml"
    elif ".." in names:
        reason = "leaves the directory of this file"
        remedy = "Move the files below it: paths in them are relative to this file."
    elif "**" in written:
        reason, remedy = "has **", "Write each level: [jobs/*.yaml, jobs/*/*.yaml]"
    elif any(name.startswith(".") for name in names[names[0] == "." :]):
        reason, remedy = "has a name that starts with .: such files are ignored", "Rename it."
    else:
        reason, remedy = "is not a pattern of files", "Write for example jobs/*.yaml"
        if names[0] == ".":
            remedy = f"Write it without ./: {'/'.join(names[1:])}"
    findings.error(spot, "YS144", f"{spot}: {quoted(written)} {reason}", remedy)


def not_a_variable(spot: Spot, findings: Findings) -> None:
    name = str(spot.value)
    if "://" in name:  # an address of notifications
        message = "an address is a secret, and this is the name of the variable that has it"
        remedy = (
            "Set the variable where workers run, replace what was pasted here, and write its name."
        )
    elif re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        message, remedy = f"{name} is set by the worker", "Choose another name."
    else:
        message = f"{quoted(name)} is not a name of an environment variable"
        remedy = "Use letters, digits and _ only; the first one is not a digit."
    findings.error(spot, "YS106", f"{_mapping(spot)}: {message}", remedy)


def not_an_exit_code(spot: Spot, findings: Findings) -> None:
    message = f"{_mapping(spot)}: {quoted(spot.value)} is not an exit code"
    findings.error(spot, "YS105", message, "Write a number from 0 to 255.")


def not_a_date(spot: Spot, findings: Findings) -> None:
    findings.error(
        spot,
        "YS106",
        f"{spot}: {quoted(str(spot.value))} is not a date",
        "Write year, month and day: 2026-12-24.",
    )


def not_weeks(spot: Spot, findings: Findings) -> None:
    text = str(spot.value)
    guess = _guess_duration(text)
    weeks, rest = divmod(durations.parse(guess), timedelta(weeks=1)) if guess else (0, True)
    remedy = "Write whole weeks, 2w to 52w. For a shorter interval write a cron with steps."
    if weeks == 1 and not rest:
        remedy = "Remove it: without every, each week counts."
    elif f"{weeks}w" != text and re.fullmatch(WEEKS, f"{weeks}w") and not rest:
        remedy = f'Did you mean "{weeks}w"?'
    message = f"{spot}: {quoted(text)} is not a number of weeks from 2w to 52w"
    findings.error(spot, "YS141", message, remedy)


def _mapping(key: Spot) -> Spot:
    """Return what messages call the mapping that has ``key``."""
    return Spot(key.node, key.path[:-1])


PATTERNS: dict[str, Callable[[Spot, Findings], None]] = {
    durations.PATTERN: not_a_duration,
    NAME: not_a_name,
    HANDLER: not_a_handler,
    PATH: not_a_relative_path,
    INCLUDE: not_a_pattern,
    VARIABLE: not_a_variable,
    EXIT_CODE: not_an_exit_code,
    DATE: not_a_date,
    DATES: not_a_date,
    WEEKS: not_weeks,
}
