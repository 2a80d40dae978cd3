"""The error for each violation of the schema: its position, its message, and what to
write instead.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from yamlsched import durations
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Spot
from yamlsched.schedule.schema import (
    DATE,
    DATES,
    EXIT_CODE,
    HANDLER,
    INCLUDE,
    JOB_KEYS,
    LIMITS,
    MAX_DURATION,
    NAME,
    NEEDED_KEYS,
    PATH,
    SCHEMA,
    TAG,
    VARIABLE,
    WEEKS,
    Schema,
)
from yamlsched.text import described, join_words, quoted

TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}

SYNONYMS = {
    "args": "payload",
    "attempts": "max_attempts",
    "calendar": "skip_on",
    "cmd": "command",
    "concurrency": "overlap",
    "depends_on": "after",
    "disabled": "enabled",
    "environment": "environments",
    "follows": "after",
    "func": "handler",
    "function": "handler",
    "interval": "cron",
    "kwargs": "payload",
    "max_retries": "max_attempts",
    "max_consecutive_failures": "pause_after",
    "misfire": "catchup",
    "on_error": "on_failure",
    "params": "payload",
    "program": "command",
    "retries": "max_attempts",
    "retry": "backoff",
    "run": "handler",
    "schedule": "cron",
    "script": "command",
    "task": "handler",
    "tasks": "jobs",
    "time_limit": "timeout",
    "tz": "timezone",
    "upstream": "after",
    "workdir": "cwd",
    "working_directory": "cwd",
}
"""What other schedulers call our keys."""
PLACES = {
    "in a job": JOB_KEYS,
    "in backoff": JOB_KEYS["backoff"]["properties"],
    "at the top level of the main file": SCHEMA["properties"],
}
"""Where keys belong."""
MAX_GUESS_CHARS = 300
"""For a longer string, no correction is suggested."""


def wrong_type(spot: Spot, schema: Schema, findings: Findings) -> None:
    value, expected = spot.value, schema["type"]
    if value is None:
        remedy = "Add a value, or remove the key."
        if expected == "object" and schema.keys().isdisjoint(("oneOf", "required")):
            remedy = f"Write {spot.path[-1]}: {{}} for none."
        is_written = spot.node.start < spot.node.end
        findings.error(spot if is_written else spot.key, "YS101", f"{spot} has no value", remedy)
        return
    if type(value) in (int, float) and not matches(str(value), schema.get("pattern", "")):
        wrong_pattern(spot, spot, schema["pattern"], findings)
        return
    remedy = "Write a string."
    if "enum" in schema:
        remedy = f"Write {join_words(schema['enum'])}."
    elif expected in ("object", "array"):
        remedy = _example(spot.path[-1], schema) if spot.path else "Start with version: 1 and jobs:"
    elif expected != "string":
        remedy = f"Write {TYPES[expected]}, without quotes."
    elif not isinstance(value, (dict, list)):
        remedy = f'Put it in quotes: "{quoted(value)}"'
    message = f"{spot} must be {TYPES[expected]}, found {described(value)}"
    findings.error(spot, "YS101", message, remedy)


def _example(key: str | int, schema: Schema) -> str:
    """Return how to write a key, from the examples of the schema."""
    if "examples" not in schema:
        return f"Write keys and values below {key}:."
    written = " or ".join(map(json.dumps, schema["examples"][:2]))
    plain = re.sub(r'"(?!\d+")([\w./-][\w./:=-]*)"', r"\1", written)
    return f"Write for example {key}: {plain}"


class Pattern(NamedTuple):
    """The error for a string that does not match a pattern of the schema. ``guess`` returns what
    was probably meant.
    """

    code: str
    message: str
    remedy: str
    guess: Callable[[str], str] = str


def _guess_duration(text: str) -> str:
    """Return the duration that ``5 minutes`` means.

    >>> _guess_duration("1 hour and 30 min"), _guess_duration("5 months")
    ('1h30m', '5 months')
    """
    if text.isdecimal():
        return f"{text}s"
    unit = r"(d)(?:ays?)?|(h)(?:ours?|rs?)?|(m)(?:in(?:ute)?s?)?|(s)(?:ec(?:ond)?s?)?"
    return re.sub(rf"([0-9])\s*(?:{unit})\b[\s,]*(?:and )?", r"\1\2\3\4\5", text.lower())


def _guess_name(text: str) -> str:
    if "." in text:
        return text  # a path
    letters = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    return re.sub("[^a-z0-9]+", "_", letters).strip("_")[:63]


def _guess_handler(text: str) -> str:
    path = re.sub(r"\(.*\)$|\.py(?=[:.])", "", text.strip())
    return re.sub(r"\.py$", ".run", path).replace("::", ":").replace("/", ".").lstrip(".")


PATTERNS = {
    durations.PATTERN: Pattern(
        "YS107",
        "is not a duration with a unit",
        "Write for example 90s, 5m, 1h30m or 2d.",
        _guess_duration,
    ),
    NAME: Pattern(
        "YS106",
        "is not a valid name: a-z, then a-z, 0-9 and _, at most 63 characters",
        "Write for example cleanup_nightly.",
        _guess_name,
    ),
    HANDLER: Pattern(
        "YS301",
        "is not the path of a function",
        "Write package.module.function.",
        _guess_handler,
    ),
    TAG: Pattern(
        "YS106", "is not a valid tag", "Use at most 63 letters, digits and . _ : / - only."
    ),
    PATH: Pattern(
        "YS118",
        "is not a relative path",
        "Write a path relative to this file, such as src or ../lib.",
    ),
    INCLUDE: Pattern(
        "YS144",
        "is not a pattern of files below the directory of this file",
        "Write for example jobs/*.yaml, without .., ** and names that start with a dot.",
        lambda text: text.removeprefix("./"),
    ),
    VARIABLE: Pattern(
        "YS106",
        "is not a valid name of a variable, or the worker sets it",
        "Write the name of a variable that is set where workers run: letters, digits and _ only.",
    ),
    EXIT_CODE: Pattern("YS105", "is not an exit code", "Write a number from 0 to 255."),
    DATE: Pattern("YS106", "is not a date", "Write year, month and day: 2026-12-24."),
    DATES: Pattern("YS106", "is not a date", "Write year, month and day: 2026-12-24."),
    WEEKS: Pattern(
        "YS141",
        "is not a number of weeks from 2w to 52w",
        "Write whole weeks, 2w to 52w. Without every, each week counts.",
    ),
}


def matches(text: str, pattern: str) -> bool:
    """Return whether a string matches a pattern as JSON Schema specifies it: Python's ``$`` also
    matches before a final line break.
    """
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def wrong_pattern(place: Spot, spot: Spot, pattern: str, findings: Findings) -> None:
    """Report a string at ``spot``, which is a value, or a key of the mapping ``place``."""
    text = str(spot.value if place is spot else spot.path[-1])
    code, message, remedy, guess = PATTERNS[pattern]
    meant = guess(text) if len(text) <= MAX_GUESS_CHARS else text
    if meant != text and matches(meant, pattern):
        remedy = f'Did you mean "{meant}"?'
    shown = quoted(text) if isinstance(spot.value, str) else text
    if "://" in text and pattern == VARIABLE:
        shown = "a URL"  # an address of notifications, which is a secret
    findings.error(spot, code, f"{place}: {shown} {message}", remedy)


def check_length(spot: Spot, findings: Findings) -> None:
    """Report a duration that is out of range, which no schema can express."""
    name = next((step for step in reversed(spot.path) if step in LIMITS), "")
    low, high = LIMITS.get(str(name), (timedelta(0), MAX_DURATION))
    if not low <= durations.parse(spot.value) <= high:
        remedy = f"Write a duration from {durations.show(low)} to {durations.show(high)}."
        findings.error(spot, "YS111", f"{spot}: {spot.value} is out of range", remedy)


def unknown_keys(spot: Spot, schema: Schema, findings: Findings) -> None:
    """Report the keys that the schema does not have, and note which ones were probably meant."""
    if schema["additionalProperties"] is not False:
        return
    properties: dict[str, Schema] = schema["properties"]
    ignored = tuple(pattern.removeprefix("^") for pattern in schema.get("patternProperties", ()))
    for child in map(spot.child, spot.value):
        key = str(child.path[-1])
        if key in properties or key.startswith(ignored):
            continue
        where = f"in {spot}" if spot.path else "at the top level"
        places = [place for place, keys in PLACES.items() if key in keys]
        remedy = f"Known keys: {', '.join(properties)}."
        if key == "late_after":
            remedy = "It was replaced: write start_within or finish_within."
        elif meant := _closest_key(key, spot, properties, findings):
            findings.intended.add((*spot.path, meant))
            remedy = f'Did you mean "{meant}"?'
        elif places:
            remedy = f"It belongs {join_words(places)}."
        elif not spot.path:
            remedy = "Indent a job below jobs. For anchors and notes, start the key with x-"
        findings.error(child.key, "YS102", f"unknown key {quoted(key)} {where}", remedy)


def _closest_key(
    key: str, spot: Spot, properties: dict[str, Schema], findings: Findings
) -> str | None:
    """Return the absent key that an unknown one was probably meant to be."""
    absent = [name for name in properties if name not in spot.value]
    synonym = SYNONYMS.get(key.lower().replace("-", "_"))
    return synonym if synonym in absent else findings.source.closest_match(key, absent, 0.7)


def _lacks(spot: Spot, key: str, findings: Findings) -> bool:
    return key not in spot.value and (*spot.path, key) not in findings.intended


def missing_keys(spot: Spot, schema: Schema, findings: Findings) -> None:
    keys = [key for key in schema["required"] if _lacks(spot, key, findings)]
    if not keys or spot.node.has_errors:
        return
    message = f"{spot} has " + " and ".join(f'no key "{key}"' for key in keys)
    remedy = _example(keys[0], schema["properties"][keys[0]])
    if keys[0] == "version":
        remedy = "Write version: 1 as the first line, or include the file in another one."
    if spot.node.key is not None:
        findings.error(spot.key, "YS103", message, remedy)
    else:
        # only the key is invalid, not the jobs: a forgotten version must not stop them
        at, start = Spot(spot.node, (*spot.path, keys[0])), spot.node.start
        findings.error(at, "YS103", message, remedy, (start, start))


def without_effect(spot: Spot, schema: Schema, findings: Findings) -> None:
    for key, needed in NEEDED_KEYS.items():
        child = spot.get(key)
        if (
            child
            and findings.is_valid(child)
            and all(_lacks(spot, name, findings) for name in needed)
        ):
            message = f"{key} of {spot} has no effect without {join_words(needed)}"
            findings.error(child.key, "YS114", message, f"Remove it, or add {join_words(needed)}.")


def handler_or_command(spot: Spot, schema: Schema, findings: Findings) -> None:
    """Report a job that has neither, or both."""
    _report_second(spot, "handler", "command", "YS119", findings)
    if spot.node.has_errors:
        return
    if _lacks(spot, "handler", findings) and _lacks(spot, "command", findings):
        message = f'{spot} has no key "handler" or "command"'
        remedy = "Add handler: handlers.cleanup.run, a Python function, or command: [program]."
        findings.error(spot.key, "YS103", message, remedy)


def cron_and_crons(spot: Spot, schema: Schema, findings: Findings) -> None:
    _report_second(spot, "cron", "crons", "YS124", findings)


def _report_second(spot: Spot, one: str, other: str, code: str, findings: Findings) -> None:
    """Report two keys of which only one is allowed, at the second one."""
    keys = [child.key for child in (spot.get(one), spot.get(other)) if child]
    if len(keys) == 2:
        first, second = sorted(keys, key=lambda key: key.node.start)
        notes = [(first.node.start, "the first one is here")]
        message = f"{spot} has {one} and {other}"
        findings.error(second, code, message, "Remove one of the two.", notes=notes)
