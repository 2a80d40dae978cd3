"""A command line of the shell as simple commands with their words and redirects. Nothing is
expanded or executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

REDIRECT = re.compile(r"(?P<fd>\d*|&)(?P<operator>>>|>\||>&|<<<|<&|>|<)(?!\()[ \t]*")
OPERATOR = re.compile(r"&&|\|\||\|&|[;&|()\n]")
END_OF_WORD = " \t\n|&;()<>"
ESCAPED = re.compile(r"\\([$`\"\\])")
EXPANDED = re.compile(r"[*?\[\]$`]|\{[^}]*(?:,|\.\.)")
PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^'"\\]+)"""
)
GROUPS = frozenset(("{", "if", "for", "while", "until", "case", "select", "function"))


class CannotSplit(ValueError):
    """Syntax that is not read here: it is unbalanced, or a here-document."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written, with its position."""

    text: str
    start: int
    end: int

    @property
    def literal(self) -> str | None:
        """The string that the shell makes of the word; None if the shell expands it."""
        value, end = "", 0
        for piece in PIECE.finditer(self.text):
            end = piece.end()
            double, plain = piece["double"], piece["plain"]
            if double is not None and re.search(r"[$`]", ESCAPED.sub("", double)):
                return None
            if plain is not None and EXPANDED.search(plain):
                return None
            value += (
                piece["single"]
                or ESCAPED.sub(r"\1", double or "")
                or piece["escaped"]
                or plain
                or ""
            )
        return None if self.text.startswith("~") or end < len(self.text) else value


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect, such as ``2>> /x/y``. ``fd`` is ``&`` for both streams of output."""

    fd: str
    operator: str
    target: Word
    start: int

    @property
    def end(self) -> int:
        return self.target.end

    @property
    def text(self) -> str:
        return f"{self.fd}{self.operator}{'' if '&' in self.operator else ' '}{self.target.text}"


@dataclass(slots=True)
class Part:
    """A simple command, and the operator behind it; empty at the end of the line."""

    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    operator: str = ""
    start: int = 0
    end: int = 0

    @property
    def program(self) -> str:
        return self.words[0].text.rpartition("/")[2] if self.words else ""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The parts of a line, and where its comment starts."""

    parts: list[Part]
    comment_at: int | None

    @property
    def has_groups(self) -> bool:
        """Whether a subshell, a loop or a condition holds some of the parts."""
        return any(part.operator in ("(", ")") or part.program in GROUPS for part in self.parts)

    @property
    def operators(self) -> set[str]:
        return {part.operator for part in self.parts}


def split(text: str) -> CommandLine:
    """Return the parts of a command line; of syntax that is not read here, one without words."""
    try:
        return _split(text)
    except CannotSplit:
        return CommandLine([Part()], None)


def _split(text: str) -> CommandLine:
    parts, at, comment_at = [Part()], 0, None
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            comment_at = at
            break
        part = parts[-1]
        if not part.words and not part.redirects:
            part.start = at
        if redirect := REDIRECT.match(text, at):
            start, at = at, _word_end(text, redirect.end())
            target = Word(text[redirect.end() : at], redirect.end(), at)
            if not target.text:
                raise CannotSplit
            part.redirects.append(Redirect(redirect["fd"], redirect["operator"], target, start))
        elif operator := OPERATOR.match(text, at):
            part.operator, at = operator[0], operator.end()
            parts.append(Part(start=at))
            continue
        elif text[at] in "<>":
            raise CannotSplit
        else:
            start, at = at, _word_end(text, at)
            part.words.append(Word(text[start:at], start, at))
        part.end = at
    if not parts[-1].words and not parts[-1].redirects and len(parts) > 1:
        parts.pop()
    return CommandLine(parts, comment_at)


def without_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return ``text`` without the spans, and without the blanks in front of them."""
    for start, end in sorted(spans, reverse=True):
        before = text[:start].rstrip(" \t")
        text = before + (" " if before.endswith("\\") else "") + text[end:]
    return text.lstrip(" \t")


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at] not in END_OF_WORD:
        at = _unit_end(text, at)
    return at


def _unit_end(text: str, at: int) -> int:
    """Return the end of a character, an escape, a quotation or a substitution. Raises
    CannotSplit.
    """
    match text[at : at + 2]:
        case "$(" | "${":
            return _closed(text, at + 2, ")" if text[at + 1] == "(" else "}")
    match text[at]:
        case "\\":
            return min(at + 2, len(text))
        case "'" | "`" as quote:
            end = text.find(quote, at + 1)
            if end < 0:
                raise CannotSplit
            return end + 1
        case '"':
            return _closed(text, at + 1, '"')
    return at + 1


def _closed(text: str, at: int, closing: str) -> int:
    """Return the end of what ends with ``closing``. Raises CannotSplit."""
    while at < len(text) and text[at] != closing:
        if text[at] == "(" and closing == ")":
            at = _closed(text, at + 1, ")")
        elif text[at] == "'" and closing == '"':
            at += 1
        else:
            at = _unit_end(text, at)
    if at >= len(text):
        raise CannotSplit
    return at + 1
