"""A report for a terminal, and for cron's mail."""

from __future__ import annotations

from collections.abc import Iterator

from yamlsched.show import terminal
from yamlsched.show.document import Document, Section


def render(document: Document) -> str:
    """Return the report as text."""
    return "\n".join(_lines(document))


def _lines(document: Document) -> Iterator[str]:
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
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield terminal.paint(section.title, "bold")
    headings = [heading.upper() for heading in section.headings]
    free_text = next((name for name in ("ERROR", "REASON", "EDIT") if name in headings), None)
    yield terminal.table(headings, section.rows, free_text=free_text)
    yield from filter(None, (section.more, section.note))
