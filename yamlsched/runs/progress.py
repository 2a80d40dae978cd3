"""How far an attempt has come, as its handler reports it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from yamlsched.db.query import Connection, fetch_grouped
from yamlsched.errors import Refused
from yamlsched.runs.lifecycle import one_line

MAX_COUNT = 2**53
"""Up to here every whole number is exact in the database."""
MAX_NOTE_CHARS = 200
"""A longer note is cut."""


class Progress(NamedTuple):
    """What ``run.progress`` was given last. Without a ``total`` it is unknown how much is left."""

    done: float
    total: float | None = None
    note: str = ""

    @property
    def percent(self) -> int | None:
        """The part that is done, rounded down: 100 means all of it. None if that is unknown."""
        if not self.total:
            return None
        return 100 if self.done >= self.total else math.floor(100 * self.done / self.total)

    def __str__(self) -> str:
        """Return it as a line for people.

        >>> str(Progress(12_000, 50_000, "customers")), str(Progress(1.5)), str(Progress(0, 0))
        ('12,000 of 50,000 (24 %), customers', '1.5', '0 of 0')
        """
        text = _shown(self.done)
        if self.total is not None:
            text += f" of {_shown(self.total)}"
        if self.percent is not None:
            text += f" ({self.percent} %)"
        return f"{text}, {self.note}" if self.note else text


def progress(done: Any, total: Any = None, note: Any = None) -> Progress:
    """Return the progress that these arguments of a handler mean. Raises Refused for values that
    have no meaning.
    """
    if note is not None and not isinstance(note, str):
        raise Refused(f"run.progress(): note must be a string, not {type(note).__name__}")
    return Progress(
        _count("done", done),
        None if total is None else _count("total", total),
        one_line(note, MAX_NOTE_CHARS) if note else "",
    )


def _count(name: str, value: Any) -> float:
    """Return ``value`` as a number. NumPy's numbers, Decimal and Fraction are numbers, too."""
    number = math.nan
    if not isinstance(value, (bool, str, bytes)):
        with suppress(OverflowError, TypeError, ValueError):
            number = float(value)
    if 0 <= number <= MAX_COUNT:
        return number
    raise Refused(
        f"run.progress(): {name} must be a number from 0 to {MAX_COUNT:,}, not {number:g}"
        f" ({type(value).__name__})"
    )


def _shown(number: float) -> str:
    return (
        f"{number:,.0f}" if float(number).is_integer() else f"{number:,.2f}".rstrip("0").rstrip(".")
    )


@dataclass(frozen=True)
class StoredProgress:
    """The last progress of an attempt. ``reported_at`` is when the value was written first: it
    stands still since.
    """

    attempt: int
    worker: str  # the claim
    done: float
    total: float | None
    note: str
    percent: int | None
    reported_at: datetime

    def __str__(self) -> str:
        return str(Progress(self.done, self.total, self.note))


def of_runs(
    connection: Connection, ids: Sequence[int], only_latest: bool = True
) -> dict[int, list[StoredProgress]]:
    """Return by the ids of runs what their attempts, or the latest ones, have reported last."""
    parameters = {"ids": list(ids), "only_latest": only_latest}
    return fetch_grouped(connection, StoredProgress, "progress.of_runs", **parameters)
