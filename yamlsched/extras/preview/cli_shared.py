"""How diff and plan write a preview."""

from __future__ import annotations

import click

from yamlsched.cli._settings import Settings
from yamlsched.extras.preview import markdown, model, text
from yamlsched.extras.preview.model import Preview

days_option = click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=7,
    show_default=True,
    help="Compare the slots of this many days.",
)


def echo(settings: Settings, preview: Preview) -> None:
    """Write a preview in the format that was passed. Markdown is a comment, which forges limit,
    with folded details.
    """
    if settings.format == "markdown":
        click.echo(markdown.render(preview))
    else:
        settings.echo(text.document(preview), **model.document(preview))
