"""A mistake and its place, and the source it is found in."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamlsched.definitions.tree import Node

ERROR, WARNING = "error", "warning"
LONGEST_LINE = 2_000
"""Longer lines are truncated."""
MAX_WORD_CHARS = 100
"""A longer word is not compared with others."""
MAX_COMPARISONS = 50_000
"""With how many words the misspelt ones of a file are compared."""
MOST = 1_000
"""At most this many errors of a file are reported."""


@dataclass(frozen=True, slots=True)
class Note:
    """Another place that belongs to a diagnostic: where the first of two keys stands, where an anchor is used."""

    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake. Lines and columns count characters from 1; ``end_column`` is the first column after it.

    ``source`` is the line it stands on, as it was written. ``remedy`` may be empty.
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
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.file, self.line, self.column, self.code, self.message)


def _line_starts(text: str) -> list[int]:
    """Return the offset at which each line starts.

    >>> _line_starts("a\\nb\\r\\n\\rc"), _line_starts("a\\n\\nb\\n")
    ([0, 2, 5, 6], [0, 2, 3, 5])
    """
    if "\r" in text:
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
    # a third of the time, which ten million line breaks make two seconds
    starts = [0, *accumulate(map((1).__add__, map(len, text.split("\n"))))]
    starts.pop()
    return starts


class Source:
    """The text of a file, and the way from an offset to a line and a column."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = _line_starts(text)
        self._line_bounds: dict[int, tuple[int, int]] = {}
        self._comparisons = MAX_COMPARISONS

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1. The end of the text belongs to its last written line."""
        at = max(0, min(at, len(self.text)))
        line = bisect_right(self._starts, at)
        if at == len(self.text) and line > 1 and at == self._starts[-1]:
            line -= 1
            return line, max(1, self._bounds(line)[1] - self._starts[line - 1] + 1)
        return line, at - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without its end."""
        first, last = self._bounds(number)
        return self.text[first:last]

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return the offsets between which a line is written, blanks at its end left out."""
        if number not in self._line_bounds:
            first = self._starts[number - 1]
            last = self._starts[number] if number < len(self._starts) else len(self.text)
            self._line_bounds[number] = first, first + len(self.text[first:last].rstrip())
        return self._line_bounds[number]

    def within(self, value: str, at: int, end: int, style: str | None, start: int, stop: int) -> tuple[int, int]:
        """Return the offsets of ``value[start:stop]``, where ``value`` is the scalar written from ``at`` to ``end``.

        Its characters are looked for one after the other, past quotes, line breaks and indentation. The whole
        scalar is returned where an escape makes that fail.
        """
        where = at + (style in ("'", '"'))
        places = []
        for character in value[:stop]:
            if character.isspace():
                where = max(where, at)
            else:
                where = self.text.find(character, where, end)
                if where < 0:
                    return at, end
            places.append(where)
            where += 1
        if not places[start:stop]:
            return at, end
        return places[start], places[-1] + 1

    def closest_match(self, word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
        """Return what ``near`` does; None once a file has had MAX_COMPARISONS of them, which take half a second."""
        if self._comparisons <= 0:
            return None
        candidates = [other for other in words if len(other) <= MAX_WORD_CHARS]
        self._comparisons -= len(candidates)
        return near(word, candidates, cutoff)

    def did_you_mean(self, word: str, words: Iterable[str], otherwise: str = "") -> str:
        """Return the remedy for a misspelt word: the closest match, else ``otherwise``."""
        meant = self.closest_match(word, words)
        return f'Did you mean "{meant}"?' if meant else otherwise

    def diagnostic(
        self,
        code: str,
        at: int,
        end: int,
        message: str,
        remedy: str = "",
        notes: Iterable[tuple[int, str]] = (),
        severity: str = ERROR,
    ) -> Diagnostic:
        """Return the diagnostic for the text from offset ``at`` to ``end``; what goes past the line is cut off."""
        line, column = self.place(at)
        first, last = self._bounds(line)
        last = min(last, first + LONGEST_LINE)
        source = self.text[first:last] if column <= LONGEST_LINE else ""
        end_column = max(column + 1, column + min(end, last) - at)
        placed = tuple(Note(self.file, *self.place(where), text) for where, text in notes)
        return Diagnostic(self.file, line, column, end_column, code, severity, message, remedy, source, placed)


def quoted(value: Any, longest: int = 60) -> str:
    """Return a value as messages show it: in double quotes if it is text, on one line, cut when long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)[: longest + 1]
    text = "".join(c if c.isprintable() else "\\" + f"x{ord(c):02x}" for c in text)
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    return f'"{text}"' if isinstance(value, str) else text


def near(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of ``words`` that ``word`` was probably meant to be."""
    if len(word) > MAX_WORD_CHARS:
        return None
    by_fold = {w.casefold().replace("-", "_").replace(" ", "_"): w for w in words}
    folded = word.casefold().replace("-", "_").replace(" ", "_")
    found = get_close_matches(folded, by_fold, n=1, cutoff=cutoff)
    return by_fold[found[0]] if found else None


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for a misspelt word: the nearest one, else ``otherwise``."""
    meant = near(word, words)
    return f'Did you mean "{meant}"?' if meant else otherwise


def listed(words: Iterable[str], last: str = "or") -> str:
    """Return words as a sentence lists them: ``wait, skip or allow``."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


Key = tuple[int, str]
"""Offset and code: what makes two diagnostics one."""
Path = tuple[str | int, ...]
"""The keys and list positions that lead to a value, from the top."""


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
        return len(self._found) >= MOST

    def diagnostics(self) -> list[Diagnostic]:
        return [self._with_uses(found, sorted(uses)) for found, uses in self._found.values()]

    def _with_uses(self, found: Diagnostic, uses: list[int]) -> Diagnostic:
        notes = [Note(found.file, *self.source.place(use), "used here") for use in uses[: self.MOST_USES]]
        if more := len(uses) - len(notes):
            notes[-1] = replace(notes[-1], text=f"used here and in {more} more places")
        return replace(found, notes=(*found.notes, *notes)) if notes else found


def where(path: Path) -> str:
    """Name the value at ``path`` as messages do: ``delay of backoff of job "cleanup"``."""
    if path[:1] == ("jobs",) and len(path) > 1:
        base, rest = f"job {quoted(str(path[1]))}", path[2:]
    elif not path:
        return "the file"
    else:
        base, rest = str(path[0]), path[1:]
    parts = [f"item {part + 1}" if isinstance(part, int) else part for part in reversed(rest)]
    return " of ".join([*parts, base])
