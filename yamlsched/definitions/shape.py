"""The shape of schedules.yaml, read off its JSON Schema.

The schema is the one source of what a file may look like. This reads the few keywords it uses over the tree of
nodes, because a general validator blames the parent, in words of its own, and takes a hundred times as long. A test
holds the two together: what jsonschema refuses is refused here, and nothing else is.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Any

from yamlsched import durations
from yamlsched.definitions.diagnostic import Findings, Path, did_you_mean, listed, near, quoted, where
from yamlsched.definitions.tree import BAD, Node

SCHEMA: dict[str, Any] = json.loads(FilePath(__file__).with_name("schedules.schema.json").read_text("utf-8"))
JOB_KEYS: dict[str, Any] = SCHEMA["definitions"]["job"]["properties"]
NAME: str = SCHEMA["properties"]["namespace"]["pattern"]
HANDLER: str = JOB_KEYS["handler"]["pattern"]

CODES = frozenset(["YS101", "YS102", "YS103", "YS104", "YS105", "YS106", "YS107", "YS108", "YS109", "YS110", "YS301"])
"""The codes of what differs from the schema; all others are about what it cannot say."""

Use = int | None
Schema = dict[str, Any]

TYPES = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, "a text"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
}

ELSEWHERE = {
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


def check(node: Node, found: Findings) -> None:
    """Report everything in which the document differs from the schema."""
    _check(node, SCHEMA, (), None, found)


def _check(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    schema = resolved(schema)
    value = node.value
    if value is BAD:
        return
    if node.use is not None:
        use = node.use
    if "type" in schema and not _is_type(value, schema["type"]):
        _wrong_type(node, schema, path, use, found)
        return
    if type(value) is str:
        _check_text(node, schema, path, use, found)
    elif type(value) is dict:
        _check_mapping(node, schema, path, use, found)
    elif type(value) is list:
        _check_list(node, schema, path, use, found)
    else:
        _check_number(node, schema, path, use, found)


def resolved(schema: Schema) -> Schema:
    """Return the schema that ``schema`` is, or refers to."""
    if "$ref" in schema:
        path, schema = schema["$ref"], SCHEMA
        for part in path.removeprefix("#/").split("/"):
            schema = schema[part]
    return schema


def _is_type(value: Any, expected: str) -> bool:
    if isinstance(value, bool) and expected != "boolean":
        return False
    if expected == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[expected][0])  # type: ignore[arg-type]


def _wrong_type(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    value, expected = node.value, schema["type"]
    if value is None:
        remedy = "Write jobs: {} to have no jobs." if path == ("jobs",) else "Give it one, or remove the key."
        place = node.key if node.key is not None and node.at == node.end else node
        found.add("YS101", place, path, use, f"{where(path)} has no value", remedy)
        return
    if schema.get("pattern") == durations.PATTERN and isinstance(value, (int, float)) and not isinstance(value, bool):
        _not_a_duration(node, path, use, found)
        return
    message = f"{where(path)} must be {TYPES[expected][1]}, found {_kind(value)}"
    found.add("YS101", node, path, use, message, _convert(node, expected, path))


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return quoted(value)
    return f"the {'text' if isinstance(value, str) else 'number'} {quoted(value)}"


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
        return f'Put it into quotes: "{quoted(value)}"'
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
            return "Begin with version: 1 and jobs:"
        return "Write keys and values below it."
    return ""


def _check_text(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    value: str = node.value
    if "enum" in schema and value not in schema["enum"]:
        choices = schema["enum"]
        message = f"{where(path)}: {quoted(value)} is not one of {', '.join(choices)}"
        found.add("YS104", node, path, use, message, did_you_mean(value, choices, f"Write {listed(choices)}."))
    elif len(value) < schema.get("minLength", 0):
        found.add("YS108", node, path, use, f"{where(path)} is empty", "Give it a value, or remove the key.")
    elif len(value) > schema.get("maxLength", len(value)):
        message = f"{where(path)} has {len(value)} characters, more than {schema['maxLength']}"
        found.add("YS108", node, path, use, message, "Shorten it.")
    elif "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        PATTERNS.get(schema["pattern"], _not_a_tag)(node, path, use, found)


def _check_number(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    value = node.value
    if "const" in schema and value != schema["const"]:
        message = f"{where(path)} {quoted(value)} is not known here; this is yamlsched for version {schema['const']}"
        found.add("YS110", node, path, use, message, f"Write {path[-1]}: {schema['const']}")
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        low, high = schema["minimum"], schema["maximum"]
        message = f"{where(path)}: {quoted(value)} is not in {low}-{high}"
        found.add("YS105", node, path, use, message, f"Write a number from {low} to {high}.")


def _check_list(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    items: list[Node] = node.value
    if len(items) < schema.get("minItems", 0):
        found.add("YS108", node, path, use, f"{where(path)} is empty", "List at least one, or remove the key.")
    elif len(items) > schema.get("maxItems", len(items)):
        message = f"{where(path)} has {len(items)} items, more than {schema['maxItems']}"
        found.add("YS108", node, path, use, message, "Shorten it.")
    seen: dict[Any, Node] = {}
    for number, item in enumerate(items):
        if "items" in schema:
            _check(item, schema["items"], (*path, number), use, found)
        if schema.get("uniqueItems") and isinstance(item.value, str):
            first = seen.setdefault(item.value, item)
            if first is not item:
                message = f"{where(path)} has {quoted(item.value)} twice"
                notes = [(first.at, "the first one is here")]
                found.add("YS109", item, (*path, number), use, message, "Remove one of the two.", notes=notes)


def _check_mapping(node: Node, schema: Schema, path: Path, use: Use, found: Findings) -> None:
    properties: dict[str, Schema] = schema.get("properties", {})
    others: Schema | bool = schema.get("additionalProperties", True)
    names = schema.get("propertyNames", {}).get("pattern")
    ignored = tuple(pattern.removeprefix("^") for pattern in schema.get("patternProperties", ()))
    for key, value in node.value.items():
        if names is not None and not re.search(names.replace("$", r"\Z"), key):
            PATTERNS[names](value.key or value, (*path, key), use, found)
        if key in properties:
            _check(value, properties[key], (*path, key), use, found)
        elif isinstance(others, dict):
            _check(value, others, (*path, key), use, found)
        elif others is False and not key.startswith(ignored or ("\0",)):
            meant = _unknown_key(node, key, properties, path, use, found)
            if meant is not None:
                found.meant.add((*path, meant))
    required = [key for key in schema.get("required", ()) if key not in node.value and (*path, key) not in found.meant]
    if required and not node.flawed:
        _missing_keys(node, required, path, use, found)


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
    meant = near(key, absent, 0.7) or near(key, properties, 0.75)
    if meant is None and ELSEWHERE.get(folded) in properties:
        meant = ELSEWHERE[folded]
    value = node.value[key]
    key_node = value.key or value
    if path == ("defaults",) and key in JOB_KEYS:
        message, remedy = f"{key} cannot be set in defaults", f"Write {key} at each job."
        found.add("YS102", key_node, (*path, key), use, message, remedy)
        return None
    remedy = f'Did you mean "{meant}"?' if meant else _home(key, value, path)
    remedy = remedy or f"Known here: {', '.join(properties)}."
    found.add("YS102", key_node, (*path, key), use, f"unknown key {quoted(key)} {place}", remedy)
    return meant


def _home(key: str, value: Node, path: Path) -> str:
    """Say where a key belongs that is known elsewhere."""
    if not path and isinstance(value.value, dict) and ("handler" in value.value or "cron" in value.value):
        return "If it is a job, indent it below jobs."
    if not path and key in JOB_KEYS:
        return "It belongs to a job, or to defaults for all jobs." if key in _defaults() else "It belongs to a job."
    if path and key in JOB_KEYS["backoff"]["properties"]:
        return "It belongs into backoff."
    if path and key in SCHEMA["properties"]:
        return "It belongs to the top level."
    return "For anchors and notes, begin the key with x-" if not path else ""


def _defaults() -> dict[str, Schema]:
    properties: dict[str, Schema] = SCHEMA["properties"]["defaults"]["properties"]
    return properties


UNITS = {"w": 604800, **durations.UNITS}
ENDINGS = "eeks?|ays?|ours?|rs?|inutes?|ins?|econds?|ecs?"
SPELLED = rf"\s*([0-9]{{1,9}}(?:\.[0-9]{{1,3}})?)\s*([wdhms])(?:{ENDINGS})?[\s,]*"


def _not_a_duration(node: Node, path: Path, use: Use, found: Findings) -> None:
    text = str(node.value).strip()
    guess = _guess_duration(text)
    if re.fullmatch("[0-9]+", text):
        reason, remedy = f"{quoted(text)[1:-1]} has no unit", f"Write {text}s for seconds or {text}m for minutes."
    else:
        reason, remedy = f"{quoted(text)} is not a duration", "Write for example 90s, 5m, 1h30m or 2d."
    remedy = f'Did you mean "{guess}"?' if guess else remedy
    found.add("YS107", node, path, use, f"{where(path)}: {reason}", remedy)


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


def _not_a_name(node: Node, path: Path, use: Use, found: Findings) -> None:
    text = str(node.value)
    allowed = "only a-z, 0-9 and _"
    if not text:
        reason = "is empty"
    elif text.lower() != text and re.fullmatch(NAME, text.lower()):
        reason = "has capital letters"
    elif "-" in text:
        reason = f"has a dash; {allowed} are taken"
    elif not re.match("[a-z]", text.lower()):
        reason = "does not begin with a letter"
    elif re.search("[^a-z0-9_]", text.lower()):
        character = re.search("[^a-z0-9_]", text.lower())
        reason = f"has {quoted(character[0] if character else '')} in it; {allowed} are taken"
    else:
        reason = f"has {len(text)} characters, more than 63"
    ascii_text = unicodedata.normalize("NFKD", text.lower().replace("ß", "ss")).encode("ascii", "ignore").decode()
    better = re.sub("_+", "_", re.sub("[^a-z0-9_]", "_", ascii_text)).strip("_")[:63]
    remedy = f'Write "{better}".' if re.fullmatch(NAME, better) else "Write a name such as cleanup_nightly."
    if path == ("namespace",):
        kind = "namespace"
    else:
        kind = "job name" if path[0] == "jobs" and len(path) == 2 else "environment"
    found.add("YS106", node, path, use, f"the {kind} {quoted(text)} {reason}", remedy)


def _not_a_handler(node: Node, path: Path, use: Use, found: Findings) -> None:
    text = str(node.value)
    better = re.sub(r"\(.*\)$", "", text.strip()).replace("/", ".").removeprefix(".").removeprefix(".")
    better = re.sub(r"\.py(?=[:.]|$)", "", better).replace("::", ":")
    if "(" in text:
        reason = "is a call; the path alone names the function"
    elif "/" in text or text.endswith(".py") or ".py:" in text:
        reason = "is the path of a file"
    elif "." not in text and ":" not in text:
        reason = "names no module"
    elif "-" in text:
        reason = "has a dash, which no Python name has"
    else:
        reason = "is not a dotted path"
    if re.fullmatch(HANDLER, better) and better != text:
        ends_in_module = re.search(r"\.py$", re.sub(r"\(.*\)$", "", text.strip())) is not None
        remedy = f'Write "{better}.run", with the name of the function.' if ends_in_module else f'Write "{better}".'
    else:
        remedy = "Write package.module.function."
    found.add("YS301", node, path, use, f"{where(path)}: {quoted(text)} {reason}", remedy)


def _not_a_tag(node: Node, path: Path, use: Use, found: Findings) -> None:
    message = f"{where(path)}: {quoted(node.value)} is not a word"
    found.add("YS106", node, path, use, message, "Write letters, digits and . _ : / - only, at most 63.")


PATTERNS: dict[str, Callable[[Node, Path, Use, Findings], None]] = {
    durations.PATTERN: _not_a_duration,
    NAME: _not_a_name,
    HANDLER: _not_a_handler,
}
