"""The text of schedules.yaml and of the files that it includes, the line and column of each offset
in it, and diagnostics that point there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from yamlsched.schedule.node import Node, Notes, Span
from yamlsched.text import MAX_WORD_CHARS, closest_match

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Note:
    """Another position that belongs to a diagnostic, such as the first of two keys or the use of an
    anchor.
    """

    file: str
    line: int
    column: int
    message: str


class Finding(NamedTuple):
    """What is wrong and what to do, without a position."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning. Lines and columns are counted in characters from 1; ``end_column`` is
    exclusive.

    ``source`` is the line of the file. ``remedy`` may be empty.
    """

    file: str
    line: int
    column: int
    end_column: int
    code: str
    severity: str
    message: str
    remedy: str = ""
    source: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def place(self) -> tuple[str, int, int, str]:
        """Where it is, and what: the same error may have another message in an environment."""
        return (self.file, self.line, self.column, self.code)

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.file, self.line, self.column, self.code, self.message)


MAX_LINE_CHARS = 2_000
"""Longer lines are truncated."""
MAX_COMPARISONS = 50_000
"""Unknown words of a file are compared with at most this many known ones."""


class Part(NamedTuple):
    """A file in the text of all: the offsets of its first character and of its end."""

    file: str
    start: int
    end: int


class Place(NamedTuple):
    """Where an offset is; line and column are counted from 1."""

    file: str
    line: int
    column: int


class Source:
    """The texts of schedules.yaml and of the files that it includes, one after the other, so that
    one offset names a file, a line and a column. It also finds known words for misspelt ones.

    ``file`` is the first one, which includes the others. A line break is added between two.
    """

    def __init__(self, file: str, text: str, *included: tuple[str, str]) -> None:
        self.file = file
        self.text = "\n".join((text, *(other for _, other in included)))
        self.parts: list[Part] = []
        self._starts: list[int] = []
        start = 0
        for name, content in ((file, text), *included):
            ends = (start + end.end() for end in re.finditer(r"\r\n|\r|\n", content))
            self._starts += [start, *ends]
            self.parts.append(Part(name, start, start + len(content)))
            start += len(content) + 1
        self._comparisons = MAX_COMPARISONS

    def part(self, at: int) -> Part:
        """Return the file that has an offset."""
        return self.parts[max(0, bisect_right(self.parts, at, key=lambda part: part.start) - 1)]

    def position(self, at: int) -> Place:
        """Return where an offset is. The end of a file belongs to its last line with text."""
        part = self.part(at)
        at = max(part.start, min(at, part.end))
        line = self._line(at)
        if at == part.end and at == self._starts[line] and at > part.start:
            line -= 1
            at = self._starts[line] + len(self.line_at(self._starts[line]))
        column = at - self._starts[line] + 1
        return Place(part.file, line - self._line(part.start) + 1, column)

    def _line(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    def line_at(self, at: int) -> str:
        """Return the line that has an offset, without whitespace at its end."""
        line = self._line(at)
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        return self.text[self._starts[line] : end].rstrip()

    def span_within(self, node: Node, start: int, stop: int) -> Span:
        """Return the span of ``value[start:stop]`` of a string; that of the whole string if it is
        written with escapes or in several lines.
        """
        at = self.text.find(node.value, *node.span)
        return (at + start, at + stop) if at >= 0 and start < stop else node.span

    def closest_match(self, word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
        """Return the closest of ``words``; None after MAX_COMPARISONS per file, which take half a
        second.
        """
        candidates = [other for other in words if len(other) <= MAX_WORD_CHARS]
        candidates = candidates[: self._comparisons]
        self._comparisons -= len(candidates)
        return closest_match(word, candidates, cutoff)

    def did_you_mean(self, word: str, words: Iterable[str], otherwise: str = "") -> str:
        """Return the remedy for a misspelt word: the closest match, else ``otherwise``."""
        meant = self.closest_match(word, words)
        return f'Did you mean "{meant}"?' if meant else otherwise

    def diagnostic(
        self, span: Span, code: str, message: str, remedy: str, notes: Notes, severity: str
    ) -> Diagnostic:
        """Return the diagnostic of a part of the text; what goes past its first line is cut off."""
        at, end = span
        file, line, column = self.position(at)
        written = self.line_at(at - 1 if column > 1 else at)[:MAX_LINE_CHARS]
        last = min(column + end - at, len(written) + 1)
        placed = tuple(Note(*self.position(note_at), text) for note_at, text in notes)
        return Diagnostic(
            file,
            line,
            column,
            max(column + 1, last),
            code,
            severity,
            message,
            remedy,
            written if column <= MAX_LINE_CHARS else "",
            placed,
        )
