"""How two versions of a job, or of what a file says outside of its jobs, differ: key by key, as
JSON values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from yamlsched.schedule.job import Retention
from yamlsched.schedule.values import plain
from yamlsched.text import escape_control, truncate


class Change(StrEnum):
    """What an edit does to a job."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


SIGNS = {Change.ADDED: "+", Change.REMOVED: "-", Change.CHANGED: "~"}


PLAIN_YAML = re.compile(r"[A-Za-z0-9_./:+-][A-Za-z0-9_./:+ -]*")


def field_name(change: FieldChange) -> str:
    """Return the name of a field; those of a payload are the user's."""
    return truncate(escape_control(change.field))


def before_and_after(change: FieldChange, kind: Change) -> str:
    """Return ``before -> after``; of a job that only one side has, the value of that side."""
    if kind is Change.ADDED:
        return value(change.after)
    if kind is Change.REMOVED:
        return value(change.before)
    before, after = _text(change.before), _text(change.after)
    if before != after and truncate(before) == truncate(after):  # they differ where it is cut
        pairs = enumerate(zip_longest(before, after))
        start = next(n for n, (one, other) in pairs if one != other) - MAX_COMMON_CHARS
        before, after = f"...{before[start:]}", f"...{after[start:]}"
    return f"{truncate(before)} -> {truncate(after)}"


def value(value: Any) -> str:
    """Return a value about as the file writes it, on one line, truncated if it is long."""
    return truncate(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return escape_control(value) or '""'
    return "(not set)" if value is None else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{escape_control(str(key))}: {_flow(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and PLAIN_YAML.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=True)


MAX_COMMON_CHARS = 20
"""Of what two long values have in common, before the part in which they differ."""
NESTED = ("payload", "env", "exit_codes", "output", "calendars")
"""Mappings whose keys are compared one by one."""
SETTINGS = ("timezone", "environments", "retention", "paths", "queues", "limits", "notify")
"""The keys of a file outside of jobs that are compared."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A key of the file before and after, as JSON values; None if it is not set."""

    field: str
    before: Any
    after: Any


def job_changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, defaults: Mapping[str, Any]
) -> tuple[FieldChange, ...]:
    """Return the keys that differ, defaults merged in. A job of one side only is compared with the
    ``defaults``.
    """
    is_edited = before is not None and after is not None
    changes: list[FieldChange] = []
    for change in differences(
        defaults if before is None else before, defaults if after is None else after
    ):
        if change.field == "limit_by":  # the file has it beside the job
            change = replace(change, field="limit.by")
        if is_edited and _is_nested(change):
            changes += differences(change.before, change.after, f"{change.field}.")
        else:
            before_value, after_value = (
                (None if before is None else change.before),
                (None if after is None else change.after),
            )
            changes.append(FieldChange(change.field, before_value, after_value))
    return tuple(changes)


def settings(file: Any) -> dict[str, Any]:
    """Return what a file says outside of its jobs, as JSON values; without what is None, which is
    not known. Of environments the names: what differs in one is in its jobs.

    ``file`` has the attributes of ``Loaded`` with these names.
    """
    known = {key: getattr(file, key) for key in SETTINGS}
    known["environments"] = known["environments"] and list(known["environments"])
    return {key: _json_value(value) for key, value in known.items() if value is not None}


def _json_value(value: Any) -> Any:
    return plain(value) if isinstance(value, (str, dict, Retention)) else list(value) or None


def settings_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Yield the keys outside of jobs that differ, as far as both sides have them."""
    for key in SETTINGS:
        if key not in before or key not in after:
            continue
        yield from _innermost(FieldChange(key, before[key], after[key]))


def _innermost(change: FieldChange) -> Iterator[FieldChange]:
    """Yield the keys that differ, down to where a side has no mapping."""
    if not (isinstance(change.before, dict) and isinstance(change.after, dict)):
        if not is_same(change.before, change.after):
            yield change
        return
    for inner in differences(change.before, change.after, f"{change.field}."):
        yield from _innermost(inner)


def _is_nested(change: FieldChange) -> bool:
    """Return whether the keys below this one are compared one by one: of a mapping, and of one
    backoff policy.
    """
    if change.field in NESTED:
        return bool(change.before and change.after)
    return change.field == "backoff" and bool(change.before["policy"] == change.after["policy"])


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[FieldChange]:
    for name in [*new, *(name for name in old if name not in new)]:
        before, after = old.get(name), new.get(name)
        if not is_same(before, after):
            yield FieldChange(prefix + name, before, after)


def is_same(before: Any, after: Any) -> bool:
    """Compare as JSON does: 1 equals 1.0, but not true."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(
            is_same(before[key], after[key]) for key in before
        )
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(is_same, before, after))
    return isinstance(before, bool) is isinstance(after, bool) and bool(before == after)
