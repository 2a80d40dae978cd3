"""Builds what a file says outside of its jobs: executors, each type with its own keys; limits;
targets; retention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from yamlsched.runs.lifecycle import LOCAL, SHARED
from yamlsched.schedule.build import Reader
from yamlsched.schedule.job import CommandExecutor, DaskExecutor, Engine, NotifyTarget, Retention
from yamlsched.schedule.node import Spot
from yamlsched.schedule.schema_errors import MISSING
from yamlsched.text import quoted


class Kind(NamedTuple):
    """A type of executor: its class, and the key that only this type has and needs."""

    build: Callable[..., Engine]
    key: str
    read: Callable[[Reader, Spot], Any]
    optional: tuple[str, ...] = ()  # keys


KINDS = {
    "command": Kind(CommandExecutor, "command", Reader.strings, ("withdraw",)),
    "dask": Kind(DaskExecutor, "address", lambda reader, spot: spot.value),
}


def build_executors(root: Spot, reader: Reader) -> dict[str, Engine | None]:
    """Return the executors of the file; None for one whose entry is not valid."""
    spot = root.get("executors")
    if spot is None or not isinstance(spot.value, dict):
        return {}
    built: dict[str, Engine | None] = {}
    for entry in spot.children():
        name = str(entry.path[-1])
        if name in (LOCAL, SHARED):
            message = f"executors: {quoted(name)} is the name of processes of each host"
            reader.findings.error(entry.key, "YS121", message, "Choose another name.")
        elif reader.findings.is_valid(entry) and _has_keys_of_its_type(entry, reader):
            kind = KINDS[entry.value["type"].value]
            values: dict[str, Any] = {kind.key: kind.read(reader, entry.child(kind.key))}
            if (most := entry.get("concurrency")) is not None:
                values["concurrency"] = reader.integer(most)
            if (within := entry.get("begin_within")) is not None:
                values["begin_within"] = reader.duration(within)
            values |= {
                key: kind.read(reader, value)
                for key in kind.optional
                if (value := entry.get(key)) is not None
            }
            if values.get("begin_within", True) is not None:
                built[name] = kind.build(name=name, **values)
        built.setdefault(name, None)
    return built


def _has_keys_of_its_type(entry: Spot, reader: Reader) -> bool:
    """Report keys of other types, and the missing key of its own."""
    own: str = entry.value["type"].value
    for name, key in (
        (name, key) for name, kind in KINDS.items() for key in (kind.key, *kind.optional)
    ):
        if name != own and (child := entry.get(key)) is not None:
            message = f"{entry}: an executor of type {own} has no key {quoted(key)}"
            reader.findings.error(child.key, "YS102", message, f"Remove it, or write type: {name}.")
    key = KINDS[own].key
    if key not in entry.value and reader.findings.is_valid(entry):
        reader.findings.error(entry.key, "YS103", f"{entry} has no key {quoted(key)}", MISSING[key])
    return reader.findings.is_valid(entry)


def build_limits(root: Spot, reader: Reader) -> dict[str, int | None]:
    """Return how many runs may execute at once under each limit of the file; None where that is not
    valid.
    """
    spot = root.get("limits")
    entries = spot.children() if spot is not None and isinstance(spot.value, dict) else ()
    return {
        str(item.path[-1]): reader.integer(item) if reader.findings.is_valid(item) else None
        for item in entries
    }


def build_targets(root: Spot, reader: Reader) -> dict[str, NotifyTarget | None]:
    """Return the targets of notifications; None for one whose entry is not valid."""
    spot = root.get("notify")
    built: dict[str, NotifyTarget | None] = {}
    for entry in spot.children() if spot is not None and isinstance(spot.value, dict) else ():
        name, events = str(entry.path[-1]), entry.get("events")
        built[name] = None
        if reader.findings.is_valid(entry):
            variable = entry.value["url_env"].value
            built[name] = (
                NotifyTarget(variable, reader.strings(events)) if events else NotifyTarget(variable)
            )
    return built


def build_retention(root: Spot, reader: Reader) -> Retention:
    """Return how long rows are kept."""
    spot = root.get("retention")
    if spot is None or not reader.findings.is_valid(spot):
        return Retention()
    folder = spot.get("archive")
    ages = {
        str(item.path[-1]): reader.duration(item)
        for item in spot.children()
        if item.path[-1] != "archive"
    }
    archive = None if folder is None else folder.value
    return Retention(
        **{key: value for key, value in ages.items() if value is not None}, archive=archive
    )
