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
    if code is None:
        titles = {code: catalog.title(code) for code in catalog.pages()}
    else:
        code = code.upper()
        if code not in catalog.pages():
            alike = [
                known for known in catalog.pages() if known[:3] == code[:3]
            ]  # of the same group
            hint = did_you_mean(code, alike, "See: yamlsched explain")
            raise click.UsageError(f'no code "{code}". {hint}')
        titles = {code: catalog.title(code)}
    if settings.wants_json:
        codes = [
            {"code": code, "title": title, "page": catalog.page(code)}
            for code, title in titles.items()
        ]
        click.echo(terminal.document(codes=codes))
    elif code is not None:
        heading, _, rest = catalog.as_text(code).partition("\n")
        click.echo(f"{terminal.paint(heading, 'bold')}\n{rest}")
    else:
        for listed, title in titles.items():
            click.echo(f"{listed}  {title}")
    return 0
