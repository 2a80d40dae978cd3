"""``yamlsched explain``: what a code means and what to do about it."""

from __future__ import annotations

import click

from yamlsched.cli._settings import Settings, verb
from yamlsched.schedule import catalog
from yamlsched.show import terminal
from yamlsched.text import did_you_mean


@verb("Explain the diagnostic CODE, such as YS203; without CODE, list all codes.", uses="")
@click.argument("code", required=False)
def command(settings: Settings, code: str | None) -> int:
    pages = catalog.pages()
    codes = list(pages) if code is None else [code.upper()]
    if unknown := [each for each in codes if each not in pages]:
        alike = [known for known in pages if known[:3] == unknown[0][:3]]  # of the same group
        hint = did_you_mean(unknown[0], alike, "See: yamlsched explain")
        raise click.UsageError(f'no code "{unknown[0]}". {hint}')
    if settings.wants_json:
        listed = [
            {"code": each, "title": catalog.title(each), "page": catalog.page(each)}
            for each in codes
        ]
        click.echo(terminal.document(codes=listed))
    elif code is not None:
        heading, _, rest = catalog.as_text(codes[0]).partition("\n")
        click.echo(f"{terminal.paint(heading, 'bold')}\n{rest}")
    else:
        click.echo("\n".join(f"{each}  {catalog.title(each)}" for each in codes))
    return 0
