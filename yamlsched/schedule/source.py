"""The text of schedules.yaml, the line and column of each offset in it, and diagnostics that point
there.
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
    def place(self) -> tuple[int, int, str]:
        """Where it is, and what: the same error may have another message in an environment."""
        return (self.line, self.column, self.code)

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.file, self.line, self.column, self.code, self.message)


MAX_LINE_CHARS = 2_000
"""Longer lines are truncated."""
MAX_COMPARISONS = 50_000
"""Unknown words of a file are compared with at most this many known ones."""


class Source:
    """The text of a file. It finds the line and the column of an offset, and known words for
    misspelt ones.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", text))]
        self._comparisons = MAX_COMPARISONS

    def position(self, at: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1. The end of the text belongs to the last
        line with text.
        """
        at = max(0, min(at, len(self.text)))
        line = bisect_right(self._starts, at)
        if at == len(self.text) and line > 1 and at == self._starts[-1]:
            return line - 1, len(self.line(line - 1)) + 1
        return line, at - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without whitespace at its end."""
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end].rstrip()

    def span_within(self, node: Node, start: int, stop: int) -> Span:
        """Return the span of ``value[start:stop]`` of a string.

        Its characters are searched one after the other, past quotes, line breaks and indentation.
        If an escape makes that fail, the span of the whole string is returned.
        """
        at = node.start + (node.style in ("'", '"'))
        places = []
        for character in node.value[:stop]:
            if not character.isspace():
                at = self.text.find(character, at, node.end)
                if at < 0:
                    return node.span
            places.append(at)
            at += 1
        return (places[start], places[-1] + 1) if places[start:stop] else node.span

    def closest_match(self, word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
        """Return the closest of ``words``; None after MAX_COMPARISONS per file, which take half a
        second.
        """
        if self._comparisons <= 0:
            return None
        candidates = [other for other in words if len(other) <= MAX_WORD_CHARS]
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
        line, column = self.position(at)
        written = self.line(line)[:MAX_LINE_CHARS]
        last = min(column + end - at, len(written) + 1)
        placed = tuple(Note(self.file, *self.position(note_at), text) for note_at, text in notes)
        return Diagnostic(
            self.file,
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
