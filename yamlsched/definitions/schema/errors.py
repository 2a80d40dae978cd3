"""What is reported for each difference from the schema: place, message, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from yamlsched import durations
from yamlsched.definitions.findings import Findings
from yamlsched.definitions.node import Node
from yamlsched.definitions.schema import JOB_KEYS, SCHEMA, Schema
from yamlsched.definitions.schema.patterns import PATTERNS, not_a_duration, not_a_tag
from yamlsched.definitions.wording import Path, join_words, quoted, where

Use = int | None

TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}

OTHER_NAMES = {
    "args": "payload",
    "attempts": "max_attempts",
    "callable": "handler",
    "command": "handler",
    "concurrency": "overlap",
    "cronjobs": "jobs",
    "disabled": "enabled",
    "env": "environments",
    "environment": "environments",
    "expression": "cron",
    "func": "handler",
    "function": "handler",
    "interval": "cron",
    "kwargs": "payload",
    "max_retries": "max_attempts",
    "max_runtime": "timeout",
    "misfire": "catchup",
    "module": "handler",
    "on_failure": "on_dead",
    "params": "payload",
    "retries": "max_attempts",
    "retry": "backoff",
    "run": "handler",
    "schedule": "cron",
    "schedules": "jobs",
    "task": "handler",
    "tasks": "jobs",
    "time_limit": "timeout",
    "tz": "timezone",
    "zone": "timezone",
}
"""What other schedulers call a key of ours."""


def wrong_type(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    value, expected = node.value, schema["type"]
    if value is None:
        remedy = "Write jobs: {} to have no jobs." if path == ("jobs",) else "Give it one, or remove the key."
        place = node.key if node.key is not None and node.at == node.end else node
        found.add("YS101", place, path, use, f"{where(path)} has no value", remedy)
        return
    if schema.get("pattern") == durations.PATTERN and isinstance(value, (int, float)) and not isinstance(value, bool):
        not_a_duration(node, path, use, found)
        return
    message = f"{where(path)} must be {TYPES[expected]}, found {_kind(value)}"
    found.add("YS101", node, path, use, message, _convert(node, expected, path))


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return quoted(value)
    return f"the {'string' if isinstance(value, str) else 'number'} {quoted(value)}"


def _convert(node: Node, expected: str, path: Path) -> str:
    """Say how to write the value so that it has the type."""
    value = node.value
    if expected == "boolean":
        if isinstance(value, str) and value.lower() in ("yes", "on", "y", "true"):
            return "Write true, without quotes."
        if isinstance(value, str) and value.lower() in ("no", "off", "n", "false"):
            return "Write false, without quotes."
        return "Write true or false."
    if expected == "string" and not isinstance(value, (dict, list)):
        return f'Put it in quotes: "{quoted(value)}"'
    if expected in ("integer", "number") and isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return f"Write {value}, without quotes."
    if expected in ("integer", "number") and not isinstance(value, float):
        return "Write a number, without quotes."
    if expected == "integer":
        return "Write it without a fraction."
    if expected == "array":
        return f"Write a list: [{value}]" if isinstance(value, (str, int)) else "Write a list: [a, b]"
    if expected == "object":
        if path == ("jobs",):
            return "Write each job as a key below jobs, without a dash:  cleanup: {handler: ...}"
        if not path:
            return "Start with version: 1 and jobs:"
        return "Write keys and values below it."
    return ""


def _not_a_choice(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    choices = schema["enum"]
    message = f"{where(path)}: {quoted(node.value)} is not one of {', '.join(choices)}"
    remedy = found.source.did_you_mean(node.value, choices, f"Write {join_words(choices)}.")
    found.add("YS104", node, path, use, message, remedy)


def _too_short(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    remedy = "List at least one, or remove the key." if "minItems" in schema else "Give it a value, or remove the key."
    found.add("YS108", node, path, use, f"{where(path)} is empty", remedy)


def _too_long(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    limit = f"items, more than {schema['maxItems']}" if "maxItems" in schema else ""
    limit = limit or f"characters, more than {schema['maxLength']}"
    found.add("YS108", node, path, use, f"{where(path)} has {len(node.value)} {limit}", "Shorten it.")


def _not_the_version(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    known = schema["const"]
    message = f"{where(path)} {quoted(node.value)} is not supported; this yamlsched reads version {known}"
    found.add("YS110", node, path, use, message, f"Write {path[-1]}: {known}")


def _out_of_range(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    low, high = schema["minimum"], schema["maximum"]
    message = f"{where(path)}: {quoted(node.value)} is not in {low}-{high}"
    found.add("YS105", node, path, use, message, f"Write a number from {low} to {high}.")


def _not_unique(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    seen: dict[str, Node] = {}
    for number, item in enumerate(node.value):
        first = seen.setdefault(item.value, item) if isinstance(item.value, str) else item
        if first is not item:
            message = f"{where(path)} has {quoted(item.value)} twice"
            notes = [(first.at, "the first one is here")]
            its_use = use if item.use is None else item.use
            found.add("YS109", item, (*path, number), its_use, message, "Remove one of the two.", notes=notes)


def _no_match(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    PATTERNS.get(schema["pattern"], not_a_tag)(node, path, use, found)


def _unknown_keys(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    ignored = tuple(pattern.removeprefix("^") for pattern in schema.get("patternProperties", ()))
    for key, value in node.value.items():
        if key not in schema["properties"] and not key.startswith(ignored or ("\0",)):
            its_use = use if value.use is None else value.use
            meant = _unknown_key(node, key, schema["properties"], path, its_use, found)
            if meant is not None:
                found.meant.add((*path, meant))


def _missing(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    keys = [key for key in schema["required"] if key not in node.value and (*path, key) not in found.meant]
    if keys and not node.flawed:
        _missing_keys(node, keys, path, use, found)


def _without_cron(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    for key, needed in schema["dependencies"].items():
        if key in node.value and (*path, needed[0]) not in found.meant and (*path, key) not in found.wrong:
            value = node.value[key]
            message = f"{key} of job {quoted(str(path[-1]))} has no effect without cron"
            remedy = "Remove it, or give the job a cron expression."
            its_use = use if value.use is None else value.use
            found.add("YS114", value.key or value, (*path, key), its_use, message, remedy)


def policy_and_delays(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    given: dict[str, Node] = node.value
    if node.flawed or path in found.wrong:
        return
    if "delays" in given:
        policy = given["policy"].value if "policy" in given else "exponential"
        message = f"{where(path)} has delays, which the policy {policy} does not use"
        remedy = "Write policy: steps, or delay: for the first delay."
        found.add("YS113", given["delays"].key or given["delays"], (*path, "delays"), use, message, remedy)
    else:
        message = f"{where(path)} has the policy steps, but no delays"
        found.add("YS113", given["policy"], (*path, "policy"), use, message, "Add delays: [1m, 10m, 1h]")


def _missing_keys(node: Node, keys: list[str], path: Path, use: Use, found: Findings) -> None:
    remedy = {
        "version": "Write version: 1 as the first line.",
        "jobs": "Write jobs: and the jobs below it; jobs: {} means that there are none.",
        "handler": "Name the Python function to call, for example handler: handlers.cleanup.run",
    }[keys[0]]
    message = f"{where(path)} has " + " and ".join(f'no key "{key}"' for key in keys)
    if path:
        found.add("YS103", node.key or node, path, use, message, remedy)
    else:
        # without a version nobody can say what the rest means, but a forgotten line must not stop the jobs
        found.add("YS103", node, (keys[0],), use, message, remedy, (node.at, node.at))


def _unknown_key(
    node: Node, key: str, properties: dict[str, Schema], path: Path, use: Use, found: Findings
) -> str | None:
    """Report a key that the schema does not have, and return the one that was meant, if that can be guessed."""
    if found.is_full:
        found.spoil((*path, key))
        return None
    place = f"in {where(path)}" if path else "at the top level"
    absent = [name for name in properties if name not in node.value]
    folded = key.lower().replace("-", "_")
    meant = found.source.closest_match(key, absent, 0.7) or found.source.closest_match(key, properties, 0.75)
    if meant is None and OTHER_NAMES.get(folded) in properties:
        meant = OTHER_NAMES[folded]
    value = node.value[key]
    key_node = value.key or value
    if path == ("defaults",) and key in JOB_KEYS:
        message, remedy = f"{key} cannot be set in defaults", f"Write {key} at each job."
        found.add("YS102", key_node, (*path, key), use, message, remedy)
        return None
    remedy = f'Did you mean "{meant}"?' if meant else _home(key, value, path)
    remedy = remedy or f"Known keys: {', '.join(properties)}."
    found.add("YS102", key_node, (*path, key), use, f"unknown key {quoted(key)} {place}", remedy)
    return meant


def _home(key: str, value: Node, path: Path) -> str:
    """Say where a key belongs that is known elsewhere."""
    if not path and isinstance(value.value, dict) and ("handler" in value.value or "cron" in value.value):
        return "If it is a job, indent it below jobs."
    if not path and key in JOB_KEYS:
        return "It belongs in a job, or in defaults for all jobs." if key in _defaults() else "It belongs in a job."
    if path and key in JOB_KEYS["backoff"]["properties"]:
        return "It belongs in backoff."
    if path and key in SCHEMA["properties"]:
        return "It belongs at the top level."
    return "For anchors and notes, start the key with x-" if not path else ""


def _defaults() -> dict[str, Schema]:
    properties: dict[str, Schema] = SCHEMA["properties"]["defaults"]["properties"]
    return properties


Report = Callable[[Node, Schema, Path, Use, Findings], None]
REPORTERS: dict[str, Report] = {
    "additionalProperties": _unknown_keys,
    "const": _not_the_version,
    "dependencies": _without_cron,
    "enum": _not_a_choice,
    "maxItems": _too_long,
    "maxLength": _too_long,
    "maximum": _out_of_range,
    "minItems": _too_short,
    "minLength": _too_short,
    "minimum": _out_of_range,
    "pattern": _no_match,
    "required": _missing,
    "type": wrong_type,
    "uniqueItems": _not_unique,
}
"""What each keyword of the schema reports."""
LAST = (_missing, _without_cron, policy_and_delays)
"""These depend on what the others have found: a misspelt key is not missing."""
