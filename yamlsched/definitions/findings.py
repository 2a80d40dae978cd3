"""Collects the diagnostics of a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from yamlsched.definitions.diagnostic import ERROR, Diagnostic, Note
from yamlsched.definitions.source import Source
from yamlsched.definitions.wording import Path

if TYPE_CHECKING:
    from yamlsched.definitions.node import Node

MAX_DIAGNOSTICS = 1_000
"""At most this many errors of a file are reported."""
Key = tuple[int, str]
"""Offset and code: what makes two diagnostics one."""


class Findings:
    """Collects mistakes. One that is reached again through an alias is one diagnostic, with a note of each use."""

    MOST_USES = 3

    def __init__(self, source: Source) -> None:
        self.source = source
        self.wrong: set[Path] = set()
        """The paths of what is wrong and of all that contains it."""
        self.meant: set[Path] = set()
        """The paths of keys that were probably meant by unknown ones: nobody shall report them as missing."""
        self._found: dict[Key, tuple[Diagnostic, dict[int, None]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self,
        code: str,
        node: Node,
        path: Path,
        use: int | None,
        message: str,
        remedy: str = "",
        span: tuple[int, int] | None = None,
        notes: Iterable[tuple[int, str]] = (),
        severity: str = ERROR,
    ) -> None:
        """Report a mistake at ``node``, or at the offsets ``span``, that makes what lies at ``path`` invalid.

        ``use`` is the offset of the alias through which the path gets there, if it does.
        """
        self.spoil(path)
        at, end = span or (node.at, node.end)
        if self.is_full and (at, code) not in self._found:
            return
        _, uses = self._found.setdefault(
            (at, code), (self.source.diagnostic(code, at, end, message, remedy, notes, severity), {})
        )
        use = node.use if use is None else use
        if use is not None:
            uses[use] = None

    def since(self, count: int) -> list[Key]:
        """Return which diagnostics were added when there had been ``count`` of them."""
        return list(islice(self._found, count, None)) if len(self._found) > count else []

    def repeat(self, keys: Iterable[Key], use: int | None) -> None:
        """Note that these diagnostics are reached again, through the alias at ``use``."""
        for key in keys:
            if use is not None:
                self._found[key][1][use] = None

    def spoil(self, path: Path) -> None:
        """Mark what lies at ``path`` as invalid, without a message."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.wrong:
                return  # and so is what contains it
            self.wrong.add(path[:length])

    @property
    def is_full(self) -> bool:
        return len(self._found) >= MAX_DIAGNOSTICS

    def diagnostics(self) -> list[Diagnostic]:
        return [self._with_uses(found, sorted(uses)) for found, uses in self._found.values()]

    def _with_uses(self, found: Diagnostic, uses: list[int]) -> Diagnostic:
        notes = [Note(found.file, *self.source.place(use), "used here") for use in uses[: self.MOST_USES]]
        if more := len(uses) - len(notes):
            notes[-1] = replace(notes[-1], text=f"used here and in {more} more places")
        return replace(found, notes=(*found.notes, *notes)) if notes else found
