"""How results are written: aligned tables, JSON with a version, times in UTC.

Tables and colours on a terminal go through rich. Piped output has neither.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.style import Style

from yamlsched import log
from yamlsched import text as terminal
from yamlsched.durations import approximate
from yamlsched.timetable import times

FORMAT_VERSION = 1
MIN_FREE_TEXT_CHARS = 20
"""What free text keeps of its column on a narrow terminal."""
MAX_FREE_TEXT_CHARS = 200
"""What a table shows of free text, however wide the output is."""
COLOURS = {
    "ok": "green",
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "failing": "yellow",
    "held_up": "yellow",
    "retrying": "yellow",
    "warn": "yellow",
    "paused": "yellow",
    "late": "red",
    "stuck": "red",
    "dead": "red",
    "fail": "red",
    "cancelled": "magenta",
}


def has_colours() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


class Styled(str):
    """A string that may be printed unchanged: its colours are ours, and values from outside are
    escaped.
    """


def unstyled(text: str) -> str:
    """Return ``text`` without our colours."""
    return terminal.without_styles(text) if isinstance(text, Styled) else text


def paint(text: str, style: str) -> str:
    """Return ``text``, which must be printable, in a style of rich such as ``bold red``, if colours
    are wanted.
    """
    if not has_colours():
        return text
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def coloured(word: str, text: str | None = None) -> Styled:
    """Return ``text``, by default ``word``, in the colour of ``word``."""
    line = printable_line(word if text is None else text)
    return Styled(paint(line, COLOURS[word]) if word in COLOURS else line)


def instant(value: datetime | None) -> str:
    """Return ``value`` in RFC 3339, UTC, to the second; "-" for None.

    >>> from datetime import UTC
    >>> instant(datetime(2026, 1, 14, 2, tzinfo=UTC))
    '2026-01-14T02:00:00Z'
    """
    return "-" if value is None else times.rfc3339(value, "seconds")


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long before or after ``now`` that is, in at most two units.

    >>> from datetime import UTC
    >>> ago(datetime(2026, 1, 14, 2, tzinfo=UTC), datetime(2026, 1, 15, 3, 5, tzinfo=UTC))
    '1d1h ago'
    """
    if value is None:
        return "-"
    return f"in {approximate(value - now)}" if value > now else f"{approximate(now - value)} ago"


def count(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> count(1, "run"), count(12000, "run")
    ('1 run', '12,000 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` without anything that controls a terminal or a CI service; line breaks and
    tabs stay.
    """
    lines = ("\t".join(map(terminal.escape_control, line.split("\t"))) for line in text.split("\n"))
    return "\n".join(map(terminal.escape_ci_commands, lines))


def printable_line(text: str) -> str:
    """Return ``text`` as one printable line; ``Styled`` text is returned unchanged."""
    if isinstance(text, Styled):
        return text
    if text.isprintable():  # as almost all of the 10,000 cells of a large table are
        return terminal.escape_ci_commands(text)
    return printable(text).replace("\n", " ").replace("\t", " ")


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], free_text: str | None = None
) -> str:
    """Return aligned columns, two spaces apart, under ``headings``.

    Only the column headed ``free_text`` is ever cut: at ``MAX_FREE_TEXT_CHARS``, and at the edge of
    a terminal. All others keep their width, so that keys and ids can be copied: the table is then
    wider than the terminal.
    """
    lines = [[printable_line(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(unstyled(line[nth])) for line in [headings, *lines])
        for nth in range(len(headings))
    ]
    if free_text is not None:
        nth = headings.index(free_text)
        limit = MAX_FREE_TEXT_CHARS
        if sys.stdout.isatty():
            others = sum(widths) - widths[nth] + 2 * (len(widths) - 1)
            room = shutil.get_terminal_size().columns - others
            limit = min(limit, max(MIN_FREE_TEXT_CHARS, room))
        widths[nth] = min(widths[nth], limit)
        for line in lines:
            line[nth] = _cut(line[nth], limit)
    titles: list[str] = [Styled(paint(heading, "bold")) for heading in headings]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_len(unstyled(cell)))
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in [titles, *lines]
    )


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width or isinstance(text, Styled):
        return text
    return set_cell_size(text, width - 3).rstrip() + "..."


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a line for each pair of a name and a value."""
    rows = [(name, printable_line(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)


def document(**parts: Any) -> str:
    """Return one JSON document; dataclasses become objects, instants RFC 3339,
    durations seconds.
    """
    text = json.dumps(
        {"format_version": FORMAT_VERSION, **parts}, default=_plain, ensure_ascii=False, indent=2
    )
    if not text.replace("\n", "").isprintable():
        text = "\n".join(map(log.printable_json, text.split("\n")))
    return text.replace(
        "##", r"#\u0023"
    )  # a JSON escape: a parser of the document gets the same text


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return times.rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
