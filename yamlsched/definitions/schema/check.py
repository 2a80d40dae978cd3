"""The shape of schedules.yaml: jsonschema decides what differs from the schema, the messages are ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from yamlsched.definitions.findings import Findings, Key
from yamlsched.definitions.node import BAD, Node
from yamlsched.definitions.schema import SCHEMA, Schema
from yamlsched.definitions.schema.errors import LAST, REPORTERS, Report, policy_and_delays, wrong_type
from yamlsched.definitions.wording import Path

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

Use = int | None


def check(root: Node, found: Findings) -> None:
    """Report everything in which the document differs from the schema.

    Jobs are checked one by one, each distinct value once, however many aliases share it.
    """
    of_file, of_job = _validators()
    _check(of_file, root, (), None, found)
    jobs = root.value.get("jobs") if isinstance(root.value, dict) else None
    if jobs is None or not isinstance(jobs.value, dict):
        return
    first: dict[int, tuple[Path, list[Key]]] = {}
    for name, node in jobs.value.items():
        path, use = ("jobs", name), jobs.use if node.use is None else node.use
        if id(node.value) not in first:
            before = len(found)
            _check(of_job, node, path, use, found)
            first[id(node.value)] = path, found.since(before)
        elif first[id(node.value)][0] in found.wrong:
            found.repeat(first[id(node.value)][1], use)
            for key in node.value if isinstance(node.value, dict) else ():
                found.spoil((*path, key))
            found.spoil(path)


@cache
def _validators() -> tuple[Validator, Validator]:
    """Return what checks a file without its jobs, and what checks a job.

    jsonschema is imported here: most ticks find the hash of the file in force and check nothing.
    """
    from jsonschema import Draft7Validator, validators

    strict: Any = validators.extend(  # type: ignore[no-untyped-call]
        Draft7Validator, {"pattern": _check_pattern, "uniqueItems": _check_unique}
    )
    jobs = {**SCHEMA["properties"]["jobs"], "additionalProperties": True}
    of_file = {**SCHEMA, "properties": {**SCHEMA["properties"], "jobs": jobs}}
    return strict(of_file), strict(SCHEMA["definitions"]["job"])


def _check_pattern(validator: Validator, pattern: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Match as JSON Schema says: Python's ``$`` also matches before a line break at the end."""
    from jsonschema import ValidationError

    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError("no match")


def _check_unique(validator: Validator, is_wanted: bool, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Compare strings only, which takes linear time: all that the schema wants unique are strings."""
    from jsonschema import ValidationError

    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if is_wanted and len(set(texts)) < len(texts):
        yield ValidationError("not unique")


def _check(validator: Validator, node: Node, path: Path, use: Use, found: Findings) -> None:
    """Report the errors of one value: jsonschema decides, the messages are ours."""
    last: list[Callable[[], None]] = []
    report: Report
    error: Any
    for error in validator.iter_errors(_outline(node)):
        place, steps = list(error.absolute_path), error.absolute_schema_path
        of_key = "propertyNames" in steps
        if of_key:
            place.append(error.instance)
        if "then" in steps or "else" in steps:
            if "backoff" not in place:
                continue  # catchup with overlap: what is inherited counts too, so definitions.build reports it
            del place[place.index("backoff") + 1 :]
            report = policy_and_delays
        else:
            report = REPORTERS[str(error.validator)]
        inner, its_use = _follow(node, use, place)
        if of_key:
            inner = inner.key or inner
        if inner.value is BAD:
            continue
        call: Callable[[], None] = partial(report, inner, error.schema, (*path, *place), its_use, found)
        if report in LAST:
            last.append(call)
        elif report is wrong_type or validator.is_type(error.instance, error.schema.get("type", "string")):
            call()
    for call in last:
        call()


def _outline(node: Node) -> Any:
    """Return the plain value, without what the schema says nothing about."""
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


def _follow(node: Node, use: Use, path: list[str | int]) -> tuple[Node, Use]:
    """Return the node that lies at ``path`` below ``node``, and the alias through which it is reached."""
    use = use if node.use is None else node.use
    for step in path:
        node = node.value[step]
        use = use if node.use is None else node.use
    return node, use
