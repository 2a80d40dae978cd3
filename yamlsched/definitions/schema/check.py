"""Checks schedules.yaml against the JSON Schema. jsonschema finds the violations, ``errors`` reports them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from yamlsched.definitions.findings import Findings, Key
from yamlsched.definitions.node import BAD, Node, Spot
from yamlsched.definitions.schema import SCHEMA, Schema
from yamlsched.definitions.schema.errors import LAST, REPORTERS, Report, policy_and_delays, wrong_type

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator


def check(root: Spot, found: Findings) -> None:
    """Report every violation of the schema.

    Jobs are checked one by one, and each distinct value once, however many aliases share it.
    """
    of_file, of_job = _validators()
    _check(of_file, root, found)
    jobs = root.get("jobs")
    checked: dict[int, tuple[Spot, list[Key]]] = {}
    for job in jobs.children() if jobs and isinstance(jobs.value, dict) else ():
        first, keys = checked.get(id(job.value), (None, []))
        if first is None:
            before = len(found)
            _check(of_job, job, found)
            checked[id(job.value)] = job, found.since(before)
        elif first.path in found.invalid:
            found.repeat(keys, job.alias_at)
            for child in job.children():
                found.mark_invalid(child.path)
            found.mark_invalid(job.path)


@cache
def _validators() -> tuple[Validator, Validator]:
    """Return the validator of a file without its jobs, and the validator of a job.

    jsonschema is imported here, because most ticks find the hash of the file in force and validate nothing.
    """
    from jsonschema import Draft7Validator, validators

    strict: Any = validators.extend(  # type: ignore[no-untyped-call]
        Draft7Validator, {"pattern": _check_pattern, "uniqueItems": _check_unique}
    )
    jobs = {**SCHEMA["properties"]["jobs"], "additionalProperties": True}
    of_file = {**SCHEMA, "properties": {**SCHEMA["properties"], "jobs": jobs}}
    return strict(of_file), strict(SCHEMA["definitions"]["job"])


def _check_pattern(validator: Validator, pattern: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Match as JSON Schema specifies: Python's ``$`` also matches before a final line break."""
    from jsonschema import ValidationError

    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError("no match")


def _check_unique(validator: Validator, is_wanted: bool, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Compare strings only, which takes linear time: all unique items of the schema are strings."""
    from jsonschema import ValidationError

    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if is_wanted and len(set(texts)) < len(texts):
        yield ValidationError("not unique")


def _check(validator: Validator, spot: Spot, found: Findings) -> None:
    """Report the violations in one value."""
    last: list[Callable[[], None]] = []
    report: Report
    error: Any
    for error in validator.iter_errors(_plain(spot.node)):
        path, steps = list(error.absolute_path), error.absolute_schema_path
        if "then" in steps or "else" in steps:
            if "backoff" not in path:
                continue  # catchup with overlap: definitions.build reports it, with what is inherited
            del path[path.index("backoff") + 1 :]
            report = policy_and_delays
        else:
            report = REPORTERS[str(error.validator)]
        inner = spot
        for step in path:
            inner = inner.child(step)
        if "propertyNames" in steps:
            inner = inner.child(error.instance).key
        if inner.value is BAD:
            continue
        call: Callable[[], None] = partial(report, inner, error.schema, found)
        if report in LAST:
            last.append(call)
        elif report is wrong_type or validator.is_type(error.instance, error.schema.get("type", "string")):
            call()
    for call in last:
        call()


def _plain(node: Node) -> Any:
    """Return the plain value without the parts that the schema does not describe."""
    if not isinstance(node.value, dict):
        return node.plain()
    return {
        key: dict.fromkeys(item.value)
        if key in ("jobs", "payload") and isinstance(item.value, dict)
        else None
        if key.startswith("x-")
        else item.plain()
        for key, item in node.value.items()
    }
