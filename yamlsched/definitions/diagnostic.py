"""A diagnostic: what is wrong, where, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Note:
    """Another place that belongs to a diagnostic: where the first of two keys stands, where an anchor is used."""

    file: str
    line: int
    column: int
    message: str


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
