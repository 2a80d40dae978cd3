"""Field by field: the keys of a job as the file writes them, with defaults merged in."""

from __future__ import annotations

from typing import Any

from yamlsched.definitions.job import Job, to_yaml
from yamlsched.preview.values import Entry, FieldChange, Side

BARE = Entry(Job("", handler=""), True, None)


def of_job(before: Entry | None, after: Entry | None) -> tuple[FieldChange, ...]:
    """Return the keys that differ. Of a job that one side lacks, those that differ from the built-in defaults."""
    if before and after and before == after and _same(before.job.payload, after.job.payload):
        return ()
    olds, news = plain(before or BARE), plain(after or BARE)
    found: list[FieldChange] = []
    for field, new in news.items():
        old = olds[field]
        if _same(old, new):
            continue
        if before and after and _is_nested(field, old, new):
            found += _compare(old, new, f"{field}.")
        else:
            found.append(FieldChange(field, old if before else None, new if after else None))
    return tuple(found)


def _is_nested(field: str, old: Any, new: Any) -> bool:
    """Say whether the keys below ``field`` are compared one by one: they are alike, or a payload's."""
    return (field == "payload" and bool(old) and bool(new)) or (field == "backoff" and old["policy"] == new["policy"])


def of_file(before: Side, after: Side) -> tuple[FieldChange, ...]:
    """Return the keys outside of jobs that differ, as far as both sides know them."""
    found = _compare({"namespace": before.namespace}, {"namespace": after.namespace})
    if before.timezone is not None:
        found += _compare({"timezone": before.timezone}, {"timezone": after.timezone})
    if before.environments is not None and after.environments is not None:
        names = [list(side) or None for side in (before.environments, after.environments)]
        found += _compare({"environments": names[0]}, {"environments": names[1]})
    if before.retention is not None and after.retention is not None:
        found += _compare(before.retention.to_row(), after.retention.to_row(), "retention.")
    if before.paths is not None and after.paths is not None:
        names = [list(side) or None for side in (before.paths, after.paths)]
        found += _compare({"paths": names[0]}, {"paths": names[1]})
    return tuple(found)


def plain(entry: Entry) -> dict[str, Any]:
    """Return the keys of a job as plain JSON values, in the order in which a reviewer reads them."""
    keys: dict[str, Any] = {}
    for key, value in to_yaml(entry.job).items():
        keys[key] = value
        if key == "enabled":
            keys["enabled"] = entry.is_enabled
            keys["environments"] = None if entry.environments is None else list(entry.environments)
    return keys


def _compare(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[FieldChange]:
    names = [*new, *(name for name in old if name not in new)]
    pairs = [(name, old.get(name), new.get(name)) for name in names]
    return [FieldChange(prefix + name, before, after) for name, before, after in pairs if not _same(before, after)]


def _same(before: Any, after: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, but not true."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_same, before, after))
    return isinstance(before, bool) is isinstance(after, bool) and bool(before == after)
