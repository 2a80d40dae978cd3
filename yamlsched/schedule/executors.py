"""Builds the executors of the file, each type with its own keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from yamlsched.runs.lifecycle import LOCAL
from yamlsched.schedule.build import Reader
from yamlsched.schedule.job import CommandExecutor, DaskExecutor, Engine
from yamlsched.schedule.node import Spot
from yamlsched.schedule.schema_errors import MISSING
from yamlsched.text import quoted


class Kind(NamedTuple):
    """A type of executor: its class, and the key that only this type has and needs."""

    build: Callable[..., Engine]
    key: str
    read: Callable[[Reader, Spot], Any]


KINDS = {
    "command": Kind(CommandExecutor, "command", Reader.strings),
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
        if name == LOCAL:
            message = f"executors: {quoted(LOCAL)} is the name of the processes of each host"
            reader.found.error(entry.key, "YS121", message, "Choose another name.")
        elif reader.found.is_valid(entry) and _has_keys_of_its_type(entry, reader):
            kind = KINDS[entry.value["type"].value]
            values: dict[str, Any] = {kind.key: kind.read(reader, entry.child(kind.key))}
            if (most := entry.get("concurrency")) is not None:
                values["concurrency"] = reader.integer(most)
            if (within := entry.get("begin_within")) is not None:
                values["begin_within"] = reader.duration(within)
            if values.get("begin_within", True) is not None:
                built[name] = kind.build(name=name, **values)
        built.setdefault(name, None)
    return built


def _has_keys_of_its_type(entry: Spot, reader: Reader) -> bool:
    """Report keys of other types, and the missing key of its own."""
    own: str = entry.value["type"].value
    for name, kind in KINDS.items():
        if name != own and (child := entry.get(kind.key)) is not None:
            message = f"{entry}: an executor of type {own} has no key {quoted(kind.key)}"
            reader.found.error(child.key, "YS102", message, f"Remove it, or write type: {name}.")
    key = KINDS[own].key
    if key not in entry.value and reader.found.is_valid(entry):
        reader.found.error(entry.key, "YS103", f"{entry} has no key {quoted(key)}", MISSING[key])
    return reader.found.is_valid(entry)
