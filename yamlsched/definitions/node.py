"""A value of schedules.yaml and its place."""

from __future__ import annotations

from typing import Any


class Bad:
    """Stands for a value that has been reported already, so that nobody reports it again."""

    def __repr__(self) -> str:
        return "BAD"


BAD = Bad()


class Node:
    """A value and its place, from offset ``at`` to ``end``.

    ``value`` of a mapping is a dict of nodes, each with the node of its ``key``; of a sequence a list of nodes.
    ``use`` is the offset of the alias or merge key through which this place is reached, if it is written elsewhere.
    ``flawed`` says that a mistake in or below it has been reported.
    """

    __slots__ = ("at", "end", "flawed", "height", "key", "size", "style", "use", "value")

    def __init__(self, value: Any, at: int, end: int, style: str | None = None, size: int = 1) -> None:
        self.value = value
        self.at = at
        self.end = end
        self.style = style
        self.size = size
        self.height = 0
        self.flawed = value is BAD
        self.use: int | None = None
        self.key: Node | None = None

    def used(self, at: int) -> Node:
        """Return this node as it is seen through an alias at ``at``."""
        node = Node(self.value, self.at, self.end, self.style, self.size)
        node.height, node.flawed, node.key, node.use = self.height, self.flawed, self.key, at
        return node

    def plain(self) -> Any:
        """Return the value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value
