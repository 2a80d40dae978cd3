"""How results are written: plain aligned tables, JSON with a version, times in UTC."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from yamlsched import log, terminal, times
from yamlsched.durations import approximate

FORMAT_VERSION = 1
MIN_LAST_COLUMN = 20
"""Characters that the last column of a table keeps on a narrow terminal."""
COLOURS = {
    "ok": "green",
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "failing": "yellow",
    "warn": "yellow",
    "paused": "yellow",
    "late": "red",
    "stuck": "red",
    "dead": "red",
    "fail": "red",
    "cancelled": "magenta",
}


def has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class Styled(str):
    """Text that is safe to show as it is: what came from outside has been made printable, the colours are ours."""


def coloured(word: str, text: str | None = None) -> Styled:
    """Return ``text``, by default ``word``, in the colour of ``word`` where colours are wanted."""
    shown = printable_cell(word if text is None else text)
    return Styled(click.style(shown, fg=COLOURS[word]) if word in COLOURS and has_colours() else shown)


def bold(text: str) -> str:
    return click.style(text, bold=True) if has_colours() else text


def instant(value: datetime | None) -> str:
    """Return ``value`` in RFC 3339, UTC, to the second; "-" for None.

    >>> instant(datetime.fromisoformat("2026-01-14T02:00Z"))
    '2026-01-14T02:00:00Z'
    """
    return "-" if value is None else times.rfc3339(value, "seconds")


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long before ``now`` that was, or how far ahead it lies, in at most two units.

    >>> ago(datetime.fromisoformat("2026-01-14T02:00Z"), datetime.fromisoformat("2026-01-15T03:05Z"))
    '1d1h ago'
    """
    if value is None:
        return "-"
    return f"in {approximate(value - now)}" if value > now else f"{approximate(now - value)} ago"


def count(number: int, noun: str) -> str:
    """Return how many of what.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` so that it steers neither a terminal nor a CI service; line breaks and tabs stay."""
    lines = ("\t".join(map(terminal.escape_control, line.split("\t"))) for line in text.split("\n"))
    return "\n".join(map(terminal.escape_ci_commands, lines))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Return lines of columns, two blanks apart. On a terminal the last column is cut at its right edge.

    Cells may be coloured: their width is that of what is seen.
    """
    lines = [list(headings), *([printable_cell(cell) for cell in row] for row in rows)]
    if sys.stdout.isatty():
        _cut_last_column(lines, shutil.get_terminal_size().columns - len(indent))
    widths = [max(len(click.unstyle(line[nth])) for line in lines) for nth in range(len(headings))]
    out = []
    for line in lines:
        cells = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(line, widths, strict=True)]
        out.append((indent + "  ".join(cells)).rstrip())
    if has_colours():
        out[0] = bold(out[0])
    return "\n".join(out)


def _cut_last_column(lines: list[list[str]], width: int) -> None:
    """Shorten the last cells so that no line is wider than ``width``, as far as that leaves them readable."""
    others = sum(max(len(click.unstyle(line[nth])) for line in lines) + 2 for nth in range(len(lines[0]) - 1))
    room = max(MIN_LAST_COLUMN, width - others)
    for line in lines:
        if len(line[-1]) > room and not isinstance(line[-1], Styled):
            line[-1] = line[-1][: room - 1] + "…"


def printable_cell(text: str) -> str:
    """Return ``text`` as one printable line; what is ``Styled`` stays as it is."""
    return text if isinstance(text, Styled) else printable(text).replace("\n", " ").replace("\t", " ")


def document(**parts: Any) -> str:
    """Return one JSON document; dataclasses become objects, instants RFC 3339, durations seconds."""
    text = json.dumps({"format_version": FORMAT_VERSION, **parts}, default=_plain, ensure_ascii=False, indent=2)
    # the escape is one of JSON: what reads the document sees the same text
    return "\n".join(log.printable_json(line).replace("##", r"#\u0023") for line in text.split("\n"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return times.rfc3339(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def comma_separated(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV with a line of headings; instants are RFC 3339, None is empty.

    Control characters are escaped. Text that a spreadsheet would take for a formula gets an apostrophe in front, as
    spreadsheets write it themselves (OWASP, CSV injection).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    for row in rows:
        writer.writerow([_cell(cell) for cell in row])
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return _plain(value)
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t", "\n")) else shown
