"""What verbs show to people: a title and parts, as text here; others lay it out as Markdown and
HTML.

Strings are not escaped: each format does that. ``Styled`` ones are, and are shown in colour only by
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from yamlsched.show import terminal

FREE_TEXT = ("error", "reason", "edit", "note", "result")
"""Headings of columns that may be long."""


@dataclass(frozen=True)
class Facts:
    """Names and values; a value without a name continues the one before."""

    pairs: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True)
class Problems:
    """What is wrong, and the command that helps. ``more`` says where the rest is listed."""

    verdict: str
    is_healthy: bool
    problems: Sequence[tuple[str, str]]
    more: str = ""


@dataclass(frozen=True)
class Section:
    """A table. ``more`` says what it leaves out, and which command lists that; "" if it is
    complete.

    Its headings may be empty: text then starts with the first row.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: str = ""
    note: str = ""

    @property
    def numbers(self) -> set[int]:
        """The columns of numbers, which are aligned to the right."""
        return {
            nth
            for nth, heading in enumerate(self.headings)
            if heading in ("runs", "attempts", "slots")
        }


@dataclass(frozen=True)
class Entry:
    """A line, the lines of a text below it, which keep their form, and entries that
    belong to it.
    """

    line: str
    text: Sequence[str] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True)
class Entries:
    """Entries one below the other."""

    entries: Sequence[Entry]


Part = Facts | Problems | Section | Entries


@dataclass(frozen=True)
class Document:
    """What a verb shows. Text has the title only with a ``span``, the line below it."""

    title: str
    parts: Iterable[Part]
    span: str = ""


def and_more(number: int, command: str) -> str:
    """Return that a list leaves out so many, and which command has them; "" if none."""
    return f"and {number} more: {command}" if number > 0 else ""


def as_text(document: Document) -> str:
    """Return the document for a terminal, and for cron's mail."""
    head = [f"{_title(document.title)}\n{document.span}"] if document.span else []
    return "\n\n".join([*head, *("\n".join(filter(None, _lines(part))) for part in document.parts)])


def _title(text: str) -> str:
    return (
        text
        if isinstance(text, terminal.Styled)
        else terminal.paint(terminal.printable_line(text), "bold")
    )


def _lines(part: Part) -> Iterator[str]:
    match part:
        case Facts():
            yield from (terminal.fields(part.pairs), part.note)
        case Problems():
            tone = "ok" if part.is_healthy else "dead"
            yield terminal.coloured(tone, part.verdict)
            for what, remedy in part.problems:
                yield f"  {terminal.printable_line(what)}"
                yield remedy and f"      {terminal.printable_line(remedy)}"
            yield part.more and f"  {part.more}"
        case Section():
            yield _title(part.title)
            if part.rows:
                headings = [heading.upper() for heading in part.headings]
                free_text = next(
                    (heading.upper() for heading in part.headings if heading in FREE_TEXT), None
                )
                table = terminal.table(headings, part.rows, free_text=free_text)
                yield table if any(headings) else table.partition("\n")[2]
            yield from (part.more, part.note)
        case Entries():
            for entry in part.entries:
                yield from _entry(entry, "")


def _entry(entry: Entry, indent: str) -> Iterator[str]:
    yield indent + terminal.printable_line(entry.line)
    yield from (f"{indent}  {terminal.printable(line)}" for line in entry.text)
    for below in entry.entries:
        yield from _entry(below, indent + " " * 4)
