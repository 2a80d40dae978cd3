"""What goes through rich: colours, tables and progress on a terminal. Piped output needs none, see
registry.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.status import Status
from rich.style import Style
from rich.table import Table
from rich.text import Text

from yamlsched.show.terminal import MIN_FREE_TEXT_CHARS, Styled, has_colours


def paint(text: str, style: str) -> str:
    """Return ``text`` in a style of rich such as ``bold red``."""
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def table(headings: Sequence[str], lines: Iterable[Sequence[str]], free_text: str | None) -> str:
    """Return aligned columns. ``free_text``, the heading of one of them, is cut to the width of the
    terminal.
    """
    rows = [
        [Text.from_ansi(cell) if isinstance(cell, Styled) else Text(cell) for cell in line]
        for line in lines
    ]
    widths = [
        max(len(heading), *(row[nth].cell_len for row in rows), 0)
        for nth, heading in enumerate(headings)
    ]
    if free_text is not None:
        nth = headings.index(free_text)
        room = (
            shutil.get_terminal_size().columns - sum(widths) - 2 * (len(widths) - 1) + widths[nth]
        )
        widths[nth] = min(widths[nth], max(MIN_FREE_TEXT_CHARS, room))
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for heading, width in zip(headings, widths, strict=True):
        grid.add_column(Text(heading, "bold"), no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        grid.add_row(*row)
    # a console as wide as the table: rich would drop columns on a narrower one
    console = Console(
        width=sum(widths) + 2 * len(widths),
        color_system="standard" if has_colours() else None,
        force_terminal=True,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(grid, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def status() -> Status:
    """Return a line of progress on stderr, to be updated."""
    return Console(stderr=True).status("")
