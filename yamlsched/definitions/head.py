"""The namespace and the time zone of a schedules.yaml, without a check of the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from yamlsched.definitions import schedule_file, timezones
from yamlsched.definitions.decode import decode
from yamlsched.definitions.node import Node
from yamlsched.definitions.parse import parse
from yamlsched.definitions.schema import NAME
from yamlsched.errors import EnvironmentFailed


class Head(NamedTuple):
    """What ``load`` returns under the same names."""

    namespace: str | None
    timezone: str


def read_head(data: bytes, file: str) -> Head:
    """Return what ``load`` reads as the namespace and the time zone of a file, however invalid it is.

    jsonschema is not imported, which takes longer than the rest.
    """
    found = decode(data, file)
    document = None if len(found) else parse(found)
    if document is None or not isinstance(document.value, dict):
        return Head(None, "UTC")
    namespace = _string(document.value.get("namespace"))
    if "namespace" not in document.value:
        namespace = "default"
    elif namespace is not None and re.search(NAME.replace("$", r"\Z"), namespace) is None:
        namespace = None
    timezone = _string(document.value.get("timezone"))
    return Head(namespace, timezone if timezone in timezones.names() else "UTC")


def timezone_of_file(file: Path) -> str:
    """Return the time zone of ``file``; UTC if it cannot be read."""
    try:
        return read_head(schedule_file.read(file), str(file)).timezone
    except EnvironmentFailed:
        return "UTC"


def _string(node: Node | None) -> str | None:
    """Return the value of a node, None if it is not a string or has errors."""
    return node.value if node is not None and isinstance(node.value, str) and not node.has_errors else None
