"""Checks schedules.yaml against the JSON Schema. jsonschema finds the violations, ``errors``
reports them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jsonschema
from jsonschema import ValidationError
from jsonschema.protocols import Validator

from yamlsched.schedule.findings import Findings, Key
from yamlsched.schedule.node import BAD, Node, Spot
from yamlsched.schedule.schema import SCHEMA, Schema
from yamlsched.schedule.schema_errors import LAST, REPORTERS, Report, policy_and_delays, wrong_type


def check(root: Spot, findings: Findings) -> None:
    """Report every violation of the schema.

    Jobs are checked one by one, and each distinct value once, however many aliases share it.
    """
    of_file, of_job = _validators()
    _check(of_file, root, _plain(root.node), findings)
    jobs = root.get("jobs")
    checked: dict[int, tuple[Spot, list[Key]]] = {}
    for job in jobs.children() if jobs and isinstance(jobs.value, dict) else ():
        first, keys = checked.get(id(job.value), (None, []))
        if first is None:
            before = len(findings)
            _check(of_job, job, _plain(job.node), findings)
            checked[id(job.value)] = job, findings.since(before)
        elif first.path in findings.invalid:
            findings.repeat(keys, job.alias_at)
            for child in job.children():
                findings.mark_invalid(child.path)
            findings.mark_invalid(job.path)


@cache
def _validators() -> tuple[Validator, Validator]:
    """Return the validator of a file without its jobs, and the validator of a job."""
    jobs = {**SCHEMA["properties"]["jobs"], "additionalProperties": True}
    of_file = {**SCHEMA, "properties": {**SCHEMA["properties"], "jobs": jobs}}
    return _strict(of_file), _strict(SCHEMA["definitions"]["job"])


def _strict(schema: Schema) -> Validator:
    """Return a validator of a part of the schema."""
    validator: Validator = _validator_class()(schema)
    return validator


@cache
def _validator_class() -> Any:
    rules = {"pattern": _check_pattern, "propertyNames": _check_names, "uniqueItems": _check_unique}
    return jsonschema.validators.extend(jsonschema.Draft7Validator, rules)  # type: ignore[no-untyped-call]


def _check_pattern(
    validator: Validator, pattern: str, value: Any, schema: Schema
) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _expression(pattern).search(value):
        yield ValidationError("no match")


def _check_names(
    validator: Any, names: Schema, value: Any, schema: Schema
) -> Iterator[ValidationError]:
    """Check the names of a mapping. Most match, which is found out without jsonschema: there may be
    100,000.
    """
    pattern = _expression(names["pattern"])
    for name in value if isinstance(value, dict) else ():
        if not pattern.search(name):
            yield from validator.descend(name, names)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern as JSON Schema specifies it: Python's ``$`` also matches before a final line
    break.
    """
    return re.compile(pattern.replace("$", r"\Z"))


def _check_unique(
    validator: Validator, is_wanted: bool, value: Any, schema: Schema
) -> Iterator[ValidationError]:
    """Compare strings only, which takes linear time: all unique items of the schema are strings."""
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if is_wanted and len(set(texts)) < len(texts):
        yield ValidationError("not unique")


def _check(validator: Validator, spot: Spot, plain: Any, findings: Findings) -> None:
    """Report the violations in one value, which is ``plain`` without positions."""
    last: list[Callable[[], None]] = []
    report: Report
    error: Any
    for error in validator.iter_errors(plain):
        path, steps = list(error.absolute_path), error.absolute_schema_path
        if "then" in steps or "else" in steps:
            if "backoff" not in path:
                # catchup with overlap: definitions.build reports it, with what is inherited
                continue
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
        call: Callable[[], None] = partial(report, inner, error.schema, findings)
        if report in LAST:
            last.append(call)
        elif report is wrong_type or validator.is_type(
            error.instance, error.schema.get("type", "string")
        ):
            call()
    for call in last:
        call()


def _plain(node: Node) -> Any:
    """Return the plain value without the parts that the schema does not describe."""
    if not isinstance(node.value, dict):
        return node.plain()
    return {
        key: (
            dict.fromkeys(item.value)
            if key in ("jobs", "payload") and isinstance(item.value, dict)
            else None
            if key.startswith("x-")
            else item.plain()
        )
        for key, item in node.value.items()
    }
