"""Checks schedules.yaml against its JSON Schema, of which it knows the keywords that the schema
uses. The tests compare the two with jsonschema.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from yamlsched import durations
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import BAD, Spot
from yamlsched.schedule.schema import SCHEMA, Schema
from yamlsched.schedule.schema_errors import (
    check_length,
    cron_and_crons,
    handler_or_command,
    matches,
    missing_keys,
    unknown_keys,
    without_effect,
    wrong_pattern,
    wrong_type,
)
from yamlsched.text import join_words, quoted

TYPES = {"object": dict, "array": list, "string": str, "number": int | float, "boolean": bool}
SIZE_UNITS = {"maxItems": "items", "maxProperties": "entries", "maxLength": "characters"}


def check(spot: Spot, findings: Findings, schema: Schema = SCHEMA) -> None:
    """Report every violation of the schema: first those inside of a value, then its own.

    So it is known which keys are misspelt when those that are missing are reported.
    """
    if "$ref" in schema:
        schema = _referenced(schema["$ref"])
    value = spot.value
    if value is BAD:
        return
    if "type" in schema and not _has_type(value, schema["type"]):
        wrong_type(spot, schema, findings)
        return
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for child in spot.children():
        inner = properties.get(child.path[-1], others) or schema.get("items")
        if inner:
            check(child, findings, inner)
    for part in schema.get("allOf", ()):
        check(spot, findings, part)
    for keyword, report in REPORTERS.items():
        if keyword in schema:
            report(spot, schema, findings)


@cache
def _referenced(path: str) -> Schema:
    """Return the part of the schema that a ``$ref`` such as #/definitions/job names."""
    schema = SCHEMA
    for step in path.split("/")[1:]:
        schema = schema[step]
    return schema


def _has_type(value: Any, expected: str) -> bool:
    if expected == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    return isinstance(value, TYPES[expected]) and (expected != "number" or type(value) is not bool)


def _invalid_names(spot: Spot, schema: Schema, findings: Findings) -> None:
    pattern = schema["propertyNames"]["pattern"]
    for child in spot.children():
        if not matches(str(child.path[-1]), pattern):
            wrong_pattern(spot, child.key, pattern, findings)


def _no_match(spot: Spot, schema: Schema, findings: Findings) -> None:
    pattern = schema["pattern"]
    if not matches(spot.value, pattern):
        wrong_pattern(spot, spot, pattern, findings)
    elif pattern == durations.PATTERN:
        check_length(spot, findings)


def _not_a_choice(spot: Spot, schema: Schema, findings: Findings) -> None:
    choices = schema["enum"]
    if spot.value not in choices:
        message = f"{spot}: {quoted(spot.value)} is not one of {', '.join(choices)}"
        remedy = findings.source.did_you_mean(spot.value, choices, f"Write {join_words(choices)}.")
        findings.error(spot, "YS104", message, remedy)


def _too_short(spot: Spot, schema: Schema, findings: Findings) -> None:
    if not spot.value:
        findings.error(spot, "YS108", f"{spot} is empty", "Add a value, or remove the key.")


def _too_long(spot: Spot, schema: Schema, findings: Findings) -> None:
    for keyword, unit in SIZE_UNITS.items():
        if len(spot.value) > (most := schema.get(keyword, len(spot.value))):
            message = f"{spot} has {len(spot.value)} {unit}, more than {most}"
            findings.error(spot, "YS108", message, "Shorten it.")


def _not_the_version(spot: Spot, schema: Schema, findings: Findings) -> None:
    known = schema["const"]
    if spot.value != known:
        message = (
            f"{spot} {quoted(spot.value)} is not supported; this yamlsched reads version {known}"
        )
        findings.error(spot, "YS110", message, f"Write {spot.path[-1]}: {known}")


def _out_of_range(spot: Spot, schema: Schema, findings: Findings) -> None:
    low, high = schema["minimum"], schema["maximum"]
    if not low <= spot.value <= high:
        message = f"{spot}: {quoted(spot.value)} is not in {low}-{high}"
        findings.error(spot, "YS105", message, f"Write a number from {low} to {high}.")


def _not_unique(spot: Spot, schema: Schema, findings: Findings) -> None:
    seen: dict[str, Spot] = {}
    for item in spot.children():
        first = seen.setdefault(item.value, item) if isinstance(item.value, str) else item
        if first is not item:
            message = f"{spot} contains {quoted(item.value)} twice"
            notes = [(first.node.start, "the first one is here")]
            findings.error(item, "YS109", message, "Remove one of the two.", notes=notes)


def _policy_and_delays(spot: Spot, schema: Schema, findings: Findings) -> None:
    """Report delays without the policy steps, and the policy steps without delays."""
    policy, delays = spot.get("policy"), spot.get("delays")
    has_steps = policy is not None and policy.value == "steps"
    if has_steps is (delays is None) and findings.is_valid(spot):
        at = delays.key if delays else spot.child("policy")
        message = f"{spot}: the policy steps needs delays, and only steps has them"
        remedy = "Write policy: steps, delays: [1m, 10m, 1h], or for another policy delay: 1m"
        findings.error(at, "YS113", message, remedy)


REPORTERS: dict[str, Callable[[Spot, Schema, Findings], None]] = {
    "propertyNames": _invalid_names,
    "additionalProperties": unknown_keys,
    "const": _not_the_version,
    "enum": _not_a_choice,
    "minimum": _out_of_range,
    "pattern": _no_match,
    "minItems": _too_short,
    "minLength": _too_short,
    "maxItems": _too_long,
    "maxLength": _too_long,
    "maxProperties": _too_long,
    "uniqueItems": _not_unique,
    "required": missing_keys,
    "oneOf": handler_or_command,
    "not": cron_and_crons,
    "dependencies": without_effect,
    "else": _policy_and_delays,
}
"""By keyword of the schema: the function that reports its violations, in this order."""
