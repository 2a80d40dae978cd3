"""A value of schedules.yaml, its position in the text, and the path of keys that leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yamlsched.text import quoted

ENTRIES = {
    "calendars": "calendar",
    "environments": "environment",
    "jobs": "job",
    "limits": "limit",
    "notify": "target",
    "queues": "queue",
}
"""What messages call the entries of top-level keys."""
DEFAULTS = "defaults"
Path = tuple[str | int, ...]
"""The keys and list positions that lead to a value, from the top."""
Span = tuple[int, int]
"""The offsets of the first character and of the one after the last."""
Notes = Sequence[tuple[int, str]]
"""Other places that explain an error: an offset and what is there."""


class Bad:
    """Stands for a value whose error has been reported, so that it is reported once."""

    def __repr__(self) -> str:
        return "BAD"


BAD = Bad()


@dataclass(slots=True, eq=False)
class Node:
    """A value and the offsets ``start`` and ``end`` between which it is written.

    ``value`` of a mapping is a dict of nodes, each with the node of its ``key``; of a sequence a
    list of nodes. ``alias_at`` is the offset of the alias or merge key that leads to this value,
    None if it is written in place. ``has_errors``: an error in this value, or below it, has been
    reported. ``size`` counts the values in it and ``height`` its levels, with all aliases expanded.
    ``defaults`` of a job is the top-level key that has what it inherits: those of an included file
    are beside those of the main one.
    """

    value: Any
    start: int
    end: int
    style: str | None = None
    size: int = 1
    height: int = 0
    has_errors: bool = False
    key: Node | None = None
    alias_at: int | None = None
    defaults: str = DEFAULTS

    def aliased(self, at: int) -> Node:
        """Return this node as the alias at offset ``at`` refers to it."""
        value, start, end, style = self.value, self.start, self.end, self.style
        return Node(value, start, end, style, self.size, self.height, self.has_errors, self.key, at)

    def merged(self, values: dict[str, Node]) -> Node:
        """Return this mapping with other values."""
        has_errors = self.has_errors or any(value.has_errors for value in values.values())
        return replace(self, value=values, has_errors=has_errors)

    @property
    def span(self) -> Span:
        return self.start, self.end

    def plain(self) -> Any:
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def is_defaults(path: Path) -> bool:
    """Return whether a path begins with ``defaults``, or with those of an included file."""
    return path[:1] == (DEFAULTS,) or str(*path[:1]).startswith(f"{DEFAULTS} of ")


@dataclass(frozen=True, slots=True)
class Spot:
    """What a diagnostic is about: a node and its path.

    As a string it is what messages call it: ``delay of backoff of job "cleanup"``.
    """

    node: Node
    path: Path = ()

    @property
    def value(self) -> Any:
        return self.node.value

    @property
    def key(self) -> Spot:
        """The key of the value, for errors that are about the key; the value itself in a list."""
        return self if self.node.key is None else Spot(self.node.key, self.path)

    def child(self, step: str | int) -> Spot:
        """Return the spot of a value of this mapping or list. Raises KeyError or IndexError."""
        return Spot(self.node.value[step], (*self.path, step))

    def children(self) -> Iterator[Spot]:
        """Yield the values of a mapping or a list; none for anything else."""
        value = self.node.value
        steps = (
            value
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        return map(self.child, steps)

    def entries(self, key: str) -> Iterator[Spot]:
        """Yield the values of the mapping at ``key``; none for anything else."""
        spot = self.get(key)
        return spot.children() if spot and isinstance(spot.value, dict) else iter(())

    def get(self, *steps: str | int) -> Spot | None:
        """Return the spot below this one, None if there is none."""
        node = self.node
        for step in steps:
            if not isinstance(node.value, dict) or step not in node.value:
                return None
            node = node.value[step]
        return Spot(node, (*self.path, *steps))

    def written(self, job: str, *keys: str) -> Spot | None:
        """Return where the file, whose top this is, has a key of a job: in its entry, or in
        defaults.
        """
        entry = self.get("jobs", job)
        return self.get("jobs", job, *keys) or (entry and self.get(entry.node.defaults, *keys))

    def layers(self) -> list[Spot]:
        """Return the defaults of the file, whose top this is, and those of included files over
        them.
        """
        return [self.child(key) for key in self.value if is_defaults((key,))]

    def __str__(self) -> str:
        path = self.path
        if not path:
            return "the file"
        if path[0] == "environments" and len(path) > 2:
            return f"{Spot(self.node, path[2:])} in environment {path[1]}"
        base, rest = str(path[0]), path[1:]
        if base in ENTRIES and rest:
            base, rest = f"{ENTRIES[base]} {quoted(str(rest[0]))}", rest[1:]
        parts = [f"item {part + 1}" if isinstance(part, int) else part for part in reversed(rest)]
        return " of ".join([*parts, base])
