"""How ``yamlsched report`` is written: its parts in words, and as text. Others lay it out as Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yamlsched.show import terminal


@dataclass(frozen=True)
class Section:
    """A table. ``more`` says what it leaves out, and which command lists that; "" if it is complete."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: str = ""
    note: str = ""

    @property
    def numbers(self) -> set[int]:
        """The columns of numbers, which are aligned to the right."""
        return {nth for nth, heading in enumerate(self.headings) if heading in ("runs", "attempts", "slots")}


@dataclass(frozen=True)
class Document:
    """A report. ``problems`` are what is wrong, and the command that helps."""

    title: str
    span: str
    is_healthy: bool
    verdict: str
    problems: Sequence[tuple[str, str]]
    more_problems: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def as_text(document: Document) -> str:
    """Return the report for a terminal, and for cron's mail."""
    return "\n".join(_text_lines(document))


def _text_lines(document: Document) -> Iterator[str]:
    yield terminal.paint(terminal.printable_line(document.title), "bold")
    yield document.span
    yield ""
    yield terminal.coloured("ok" if document.is_healthy else "dead", document.verdict)
    for what, remedy in document.problems:
        yield f"  {terminal.printable_line(what)}"
        yield f"      {terminal.printable_line(remedy)}"
    if document.more_problems:
        yield f"  {document.more_problems}"
    yield ""
    yield terminal.fields(document.facts)
    for section in document.sections:
        yield ""
        yield from _text_section(section)


def _text_section(section: Section) -> Iterator[str]:
    yield terminal.paint(section.title, "bold")
    headings = [heading.upper() for heading in section.headings]
    free_text = next((name for name in ("ERROR", "REASON", "EDIT") if name in headings), None)
    yield terminal.table(headings, section.rows, free_text=free_text)
    yield from filter(None, (section.more, section.note))
