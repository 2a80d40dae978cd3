"""How diff and plan show a preview on a terminal."""

from __future__ import annotations

import click

from yamlsched.cli import _output

COLOURS = {"+": "green", "-": "red", "~": "yellow", "!": "yellow"}


def shown(text: str) -> str:
    """Return the text of a preview so that nothing in it moves the cursor, its signs coloured where that is wanted."""
    text = _output.printable(text)
    return "\n".join(map(_painted, text.split("\n"))) if _output.has_colours() else text


def _painted(line: str) -> str:
    sign = line.lstrip()[:2]
    is_head = sign == "! " or line[:2] == sign
    return click.style(line, fg=COLOURS[sign[0]]) if is_head and sign[:1] in COLOURS and sign[1:] == " " else line
