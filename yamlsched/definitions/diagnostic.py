"""A diagnostic: what is wrong, where, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Note:
    """Another position that belongs to a diagnostic, such as the first of two keys or the use of an anchor."""

    file: str
    line: int
    column: int
    message: str


class Problem(NamedTuple):
    """What is wrong and what to do, without a position."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning. Lines and columns are counted in characters from 1; ``end_column`` is exclusive.

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
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.file, self.line, self.column, self.code, self.message)
