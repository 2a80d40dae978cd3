"""How values are written in the file, stored as JSON and shown, and how that is read: their type
decides.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from yamlsched import durations


def plain(value: Any) -> Any:
    """Return a value as a file writes it. A key that is empty unless it is set is left out."""
    if isinstance(value, timedelta):
        return durations.show(value)
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if not is_dataclass(value):
        return value
    # `while_` is the key `while`, which is no name in Python
    keys = {
        item.name.rstrip("_"): (getattr(value, item.name), item.default) for item in fields(value)
    }
    return {name: plain(item) for name, (item, default) in keys.items() if item or item != default}


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def parse(kind: Any, value: Any) -> Any:
    """Return the value of type ``kind`` that a file, or ``plain``, has written. A key that the type
    does not have is ignored: a later release has stored it.
    """
    if kind is Any or value is None:
        return value
    if isinstance(kind, UnionType):  # with None
        return parse(get_args(kind)[0], value)
    if kind is timedelta:
        return durations.parse(value)
    if is_dataclass(kind) and isinstance(kind, type):
        types = {name.rstrip("_"): (name, of) for name, of in _types(kind).items()}
        known = {types[key]: item for key, item in value.items() if key in types}
        return kind(**{name: parse(of, item) for (name, of), item in known.items()})
    if get_origin(kind) is tuple:
        return tuple(parse(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is dict:
        of_key, of_item = get_args(kind)
        return {parse(of_key, key): parse(of_item, item) for key, item in value.items()}
    if issubclass(kind, Enum) and isinstance(value, str):
        return kind[value.upper()]
    return kind(value)
