"""The error for each violation of the schema: its position, its message, and what to
write instead.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from yamlsched import durations
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Path, Spot, is_defaults
from yamlsched.schedule.schema import (
    DATE,
    DATES,
    HOOKS,
    JOB_KEYS,
    NAME,
    PATTERNS,
    SCHEMA,
    WEEKS,
    Schema,
    hook_remedy,
    needed_keys,
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
MAX_COMMAND_LINE_CHARS = 200
PLAIN_ITEM = re.compile(r"[A-Za-z0-9_./-]+")
NEEDS_SHELL = re.compile(r"[|&;<>$`*?~()\n]")
"""What only a shell acts on."""
IN_MAIN_FILE = {
    "include": "Move its patterns to include of the main file.",
    "version": "Remove it: only the main file sets the version.",
}
"""What to do about keys that only the main file has."""
MISSING = {
    "version": "Write version: 1 as the first line, or include the file in another one.",
    "jobs": "Write jobs: and the jobs below it; jobs: {} means that there are none.",
    "handler": (
        "Add the Python function to call, for example handler: handlers.cleanup.run, or a command:"
        " [program]."
    ),
    "dates": "Add its dates, for example dates: [2026-12-25, 2026-12-26].",
    "url_env": (
        "Add the name of the variable that has its address, for example url_env: OPS_NOTIFY_URL"
    ),
    "keep": "Write output: {keep: always}, {keep: failed} or {keep: never}.",
    "max_workers": "Add how many started workers may be there at once, for example max_workers: 8.",
    "command": "Add the program that starts a worker, for example command: [/srv/app/start].",
    "max": "Add how many runs may execute at once, for example max: 2.",
    "by": "Add the keys of the payload to compare, for example by: [tenant_id]; by: [] for none.",
}
"""What to do about each required key."""
MAPPINGS = {
    "backoff": "Write for example backoff: {policy: exponential, delay: 1m}",
    "output": MISSING["keep"],
    "unique": "Write unique: {by: [tenant_id]}; by: [] compares no keys.",
}
"""How to write a mapping for which another type was found, by its key."""


def wrong_type(spot: Spot, schema: Schema, findings: Findings) -> None:
    value, expected = spot.value, schema["type"]
    if value is None:
        remedy = "Add a value, or remove the key."
        if spot.path == ("jobs",):
            remedy = "Write jobs: {} to have no jobs."
        elif spot.path[:-1] == ("environments",):
            remedy = f"Write {spot.path[1]}: {{}} if no values differ there."
        is_written = spot.node.start < spot.node.end
        findings.error(spot if is_written else spot.key, "YS101", f"{spot} has no value", remedy)
    elif schema.get("pattern") in (durations.PATTERN, DATE, DATES, WEEKS) and type(value) in (
        int,
        float,
    ):
        PATTERNS[schema["pattern"]](spot, findings)
    else:
        message = f"{spot} must be {TYPES[expected]}, found {described(value)}"
        remedy = (
            f"Write {join_words(schema['enum'])}."
            if "enum" in schema
            else _conversion(value, expected, spot.path)
        )
        findings.error(spot, "YS101", message, remedy)


def _conversion(value: Any, expected: str, path: Path) -> str:
    """Return how to write a value of the expected type."""
    if expected == "string" and not isinstance(value, (dict, list)):
        return f'Put it in quotes: "{quoted(value)}"'
    if expected in ("integer", "number", "boolean"):
        return f"Write {TYPES[expected]}, without quotes."
    if expected == "array" and path[-1] == "command":
        return _argv(str(value))
    if (
        path[-1:]
        and path[-1] in HOOKS
        and not (isinstance(value, str) and re.fullmatch(NAME, value))
    ):
        return hook_remedy(value)
    if expected == "array":
        item = (
            json.dumps(value)
            if isinstance(value, str) and not PLAIN_ITEM.fullmatch(value)
            else value
        )
        return (
            f"Write a list: [{item}]" if isinstance(value, (str, int)) else "Write a list: [a, b]"
        )
    if expected == "object":
        if path == ("environments",):
            names = value if isinstance(value, list) else ["production", "staging"]
            entries = ", ".join(f"{getattr(name, 'value', name)}: {{}}" for name in names)
            return f"Write a mapping, with the values that differ: {{{entries}}}"
        if path == ("jobs",):
            return "Write each job as a key below jobs, without a dash:  cleanup: {handler: ...}"
        if path and path[-1] in MAPPINGS and path[-2:-1] != ("jobs",):
            return MAPPINGS[str(path[-1])]
        if len(path) == 2 and path[0] == "limits":
            most = value if isinstance(value, int) and not isinstance(value, bool) else 2
            return f"Write {path[1]}: {{max: {most}}}"
        return "Write keys and values below it." if path else "Start with version: 1 and jobs:"
    return ""


def _argv(line: str) -> str:
    """Return how to write a command line as a list."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    if words and len(line) < MAX_COMMAND_LINE_CHARS and not NEEDS_SHELL.search(line):
        return f"Write a list: {json.dumps(words, ensure_ascii=False)}"
    return "Write a list: [program, argument], or for a shell [/bin/sh, -c, '...']"


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
        if findings.is_full:
            findings.mark_invalid(child.path)
        elif is_defaults(spot.path[-1:]) and key in JOB_KEYS:
            findings.error(
                child.key, "YS102", f"{key} cannot be set in defaults", f"Set {key} in each job."
            )
        elif "version" not in properties and spot.node.key is None and key in SCHEMA["properties"]:
            remedy = IN_MAIN_FILE.get(key, f"Set {key} in the main file, which includes this one.")
            findings.error(child.key, "YS102", f"{key} cannot be set in an included file", remedy)
        else:
            meant = _closest_key(key, spot, properties, findings)
            if meant is not None:
                findings.intended.add((*spot.path, meant))
            message = (
                f"unknown key {quoted(key)} {f'in {spot}' if spot.path else 'at the top level'}"
            )
            remedy = f'Did you mean "{meant}"?' if meant else _place_of(child)
            findings.error(
                child.key, "YS102", message, remedy or f"Known keys: {', '.join(properties)}."
            )


def _closest_key(
    key: str, spot: Spot, properties: dict[str, Schema], findings: Findings
) -> str | None:
    """Return the key that an unknown one was probably meant to be, preferably one that
    is absent.
    """
    absent = [name for name in properties if name not in spot.value]
    meant = findings.source.closest_match(key, absent, 0.7) or findings.source.closest_match(
        key, properties, 0.75
    )
    synonym = SYNONYMS.get(key.lower().replace("-", "_"))
    return meant or (synonym if synonym in properties else None)


def _place_of(spot: Spot) -> str:
    """Return where a key belongs that is unknown here."""
    *parent, key = spot.path
    if (
        not parent
        and isinstance(spot.value, dict)
        and not spot.value.keys().isdisjoint(("handler", "cron", "crons"))
    ):
        return "If it is a job, indent it below jobs."
    if not parent and key in JOB_KEYS:
        return "It belongs in a job, or in defaults for all jobs."
    if parent[:1] == ["jobs"] and key == "user":
        return "A command runs as the user of the worker."
    if parent[:1] == ["environments"] and len(parent) == 2 and key in JOB_KEYS:
        return "It belongs in defaults or in a job of the environment."
    if parent and key in JOB_KEYS["backoff"]["properties"]:
        return "It belongs in backoff."
    if parent and key in SCHEMA["properties"]:
        return "It belongs at the top level."
    return "" if parent else "For anchors and notes, start the key with x-"


def missing_keys(spot: Spot, schema: Schema, findings: Findings) -> None:
    keys = [
        key
        for key in schema["required"]
        if key not in spot.value and (*spot.path, key) not in findings.intended
    ]
    if not keys or spot.node.has_errors:
        return
    message = f"{spot} has " + " and ".join(f'no key "{key}"' for key in keys)
    if spot.node.key is not None:
        findings.error(spot.key, "YS103", message, MISSING[keys[0]])
    else:
        # only the key is invalid, not the jobs: a forgotten version must not stop them
        start = spot.node.start
        findings.error(
            Spot(spot.node, (*spot.path, keys[0])),
            "YS103",
            message,
            MISSING[keys[0]],
            (start, start),
        )


def without_effect(spot: Spot, schema: Schema, findings: Findings) -> None:
    for key, dependency in schema["dependencies"].items():
        child, needed = spot.get(key), needed_keys(dependency)
        is_needed = not any(
            name in spot.value or (*spot.path, name) in findings.intended for name in needed
        )
        if child and is_needed and child.path not in findings.invalid:
            message = f"{key} of {spot} has no effect without {join_words(needed)}"
            what = {"cron": "a cron expression", "command": "a command"}.get(needed[0], needed[0])
            if key == "timezone" and "after" in spot.value:
                what += " of its own: it has the slots of the jobs in after"
            findings.error(child.key, "YS114", message, f"Remove it, or give the job {what}.")


def handler_or_command(spot: Spot, schema: Schema, findings: Findings) -> None:
    """Report a job that has neither, or both."""
    if "handler" in spot.value and "command" in spot.value:
        message = f"{spot} has a handler and a command"
        _report_second(
            spot, ("handler", "command"), "YS119", message, "Remove one of the two.", findings
        )
    elif not (
        "handler" in spot.value
        or "command" in spot.value
        or any((*spot.path, key) in findings.intended for key in ("handler", "command"))
        or spot.node.has_errors
    ):
        message = f'{spot} has no key "handler" or "command"'
        findings.error(spot.key, "YS103", message, MISSING["handler"])


def cron_and_crons(spot: Spot, schema: Schema, findings: Findings) -> None:
    if "cron" in spot.value and "crons" in spot.value:
        remedy = (
            "Write all expressions in crons. Keys then have the minute in UTC, also those of a"
            " daily job."
        )
        message = f"{spot} has cron and crons"
        _report_second(spot, ("cron", "crons"), "YS124", message, remedy, findings)


def _report_second(
    spot: Spot, keys: tuple[str, str], code: str, message: str, remedy: str, findings: Findings
) -> None:
    """Report two keys of which only one is allowed, at the second one."""
    first, second = sorted(
        (spot.child(key).key for key in keys), key=lambda child: child.node.start
    )
    notes = [(first.node.start, "the first one is here")]
    findings.error(second, code, message, remedy, notes=notes)
