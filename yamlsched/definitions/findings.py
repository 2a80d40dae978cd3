"""Collects the diagnostics of a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partialmethod
from itertools import islice

from yamlsched.definitions.diagnostic import ERROR, WARNING, Diagnostic, Note, Problem
from yamlsched.definitions.node import Notes, Path, Span, Spot
from yamlsched.definitions.source import Source
from yamlsched.definitions.suppressions import COMMENT, is_suppressed

MAX_DIAGNOSTICS = 1_000
"""At most this many diagnostics of a file are collected by one check, and besides those that comments suppress."""
MAX_ALIAS_NOTES = 3
"""At most this many aliases that lead to an error are listed."""

Key = tuple[int, str]
"""Offset and code: at most one diagnostic has both."""


class Findings:
    """Collects diagnostics. An error that several aliases lead to is one diagnostic, with a note for each alias."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.invalid: set[Path] = set()
        """The paths of invalid values, and of everything that contains them."""
        self.intended: set[Path] = set()
        """The paths of keys that unknown keys were probably meant to be: they are not reported as missing."""
        self._found: dict[Key, tuple[Diagnostic, dict[int, None]]] = {}
        self._suppresses = COMMENT.search(source.text) is not None
        self._suppressed = 0

    def __len__(self) -> int:
        return len(self._found)

    def error(
        self,
        spot: Spot,
        code: str,
        message: str,
        remedy: str = "",
        span: Span | None = None,
        notes: Notes = (),
        severity: str = ERROR,
    ) -> None:
        """Report an error at ``spot``, or at the offsets ``span`` inside it, and mark the value as invalid."""
        self.mark_invalid(spot.path)
        self._add(span or spot.node.span, code, message, remedy, notes, severity, spot)

    warning = partialmethod(error, severity=WARNING)

    def report(self, spot: Spot, problem: Problem) -> None:
        """Report an error at ``spot``, which the message names."""
        self.error(spot, problem.code, f"{spot}: {problem.message}", problem.remedy)

    def error_at(self, span: Span, code: str, message: str, remedy: str = "", notes: Notes = ()) -> None:
        """Report an error in the text that makes no value invalid, or whose value is marked already."""
        self._add(span, code, message, remedy, notes)

    def _add(
        self,
        span: Span,
        code: str,
        message: str,
        remedy: str,
        notes: Notes,
        severity: str = ERROR,
        spot: Spot | None = None,
    ) -> None:
        key = span[0], code
        if key not in self._found:
            if self.is_full and not self._suppresses:
                return
            found = self.source.diagnostic(span, code, message, remedy, notes, severity)
            if is_suppressed(found):
                self._suppressed += 1
            elif self.is_full:
                return
            self._found[key] = found, {}
        if spot is not None:
            self.repeat([key], spot.alias_at)

    def is_reported(self, code: str, line: int) -> bool:
        return any(one.code == code and one.line == line for one, _ in self._found.values())

    def since(self, count: int) -> list[Key]:
        """Return which diagnostics were added after the first ``count``."""
        return list(islice(self._found, count, None)) if len(self._found) > count else []

    def repeat(self, keys: Iterable[Key], alias_at: int | None) -> None:
        """Note that the alias at an offset leads to these diagnostics too."""
        if alias_at is not None:
            for key in keys:
                self._found[key][1][alias_at] = None

    def mark_invalid(self, path: Path) -> None:
        """Mark the value at ``path``, and everything that contains it, as invalid."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.invalid:
                return  # as is everything that contains it
            self.invalid.add(path[:length])

    def is_valid(self, spot: Spot) -> bool:
        """Return whether no error in the value, or below it, has been reported."""
        return not spot.node.has_errors and spot.path not in self.invalid

    @property
    def is_full(self) -> bool:
        return len(self._found) - self._suppressed >= MAX_DIAGNOSTICS

    def diagnostics(self) -> list[Diagnostic]:
        """Return the diagnostics in the order of the file."""
        found = [self._with_aliases(one, sorted(aliases)) for one, aliases in self._found.values()]
        return sorted(found, key=lambda one: one.order)

    def _with_aliases(self, found: Diagnostic, aliases: list[int]) -> Diagnostic:
        notes = [Note(found.file, *self.source.position(at), "used here") for at in aliases[:MAX_ALIAS_NOTES]]
        if more := len(aliases) - len(notes):
            notes[-1] = replace(notes[-1], message=f"used here and in {more} more places")
        return replace(found, notes=(*found.notes, *notes)) if notes else found
