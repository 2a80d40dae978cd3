"""How diff and plan write a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from yamlsched.show import terminal

if TYPE_CHECKING:
    from yamlsched.extras.preview.model import Preview

FORMATS = ("text", "json", "markdown")
COLOURS = {"+": "green", "-": "red", "~": "yellow", "!": "yellow"}


days_option = click.option(
    "--days", type=click.IntRange(1, 366), default=7, show_default=True, help="Compare the slots of this many days."
)


def echo(preview: Preview, form: str) -> None:
    """Write a preview in one of ``FORMATS``."""
    from yamlsched.extras.preview import markdown, model, text

    if form == "json":
        click.echo(terminal.document(**model.document(preview)))
    elif form == "markdown":
        click.echo(markdown.render(preview))
    else:
        click.echo(coloured(text.render(preview)))


def coloured(text: str) -> str:
    """Return the text with its signs coloured if colours are wanted; nothing in it controls the terminal."""
    text = terminal.printable(text)
    return "\n".join(map(_coloured_line, text.split("\n"))) if terminal.has_colours() else text


def _coloured_line(line: str) -> str:
    sign = line.lstrip()[:2]
    is_head = sign == "! " or line[:2] == sign
    return terminal.paint(line, COLOURS[sign[0]]) if is_head and sign[:1] in COLOURS and sign[1:] == " " else line
