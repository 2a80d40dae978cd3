"""How ``yamlsched report`` is written: its parts in words, which text, Markdown and HTML each lay out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
