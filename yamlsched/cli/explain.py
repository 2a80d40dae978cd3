"""``yamlsched explain``: what a code means and what to do about it."""

from __future__ import annotations

from difflib import get_close_matches

import click

from yamlsched.cli import _output
from yamlsched.cli._settings import Settings, Verb
from yamlsched.definitions import catalog


@click.command(cls=Verb, offline=True, help="Explain the diagnostic CODE, such as YS203; without CODE, list all codes.")
@click.argument("code", required=False)
@click.pass_obj
def command(settings: Settings, code: str | None) -> int:
    if code is None:
        shown = {code: catalog.title(code) for code in catalog.pages()}
    else:
        code = code.upper()
        if code not in catalog.pages():
            near = get_close_matches(code, catalog.pages(), n=1)
            hint = f' Did you mean "{near[0]}"?' if near else " See: yamlsched explain"
            raise click.UsageError(f'no code "{code}".{hint}')
        shown = {code: catalog.title(code)}
    if settings.wants_json:
        codes = [{"code": code, "title": title, "page": catalog.page(code)} for code, title in shown.items()]
        click.echo(_output.document(codes=codes))
    elif code is not None:
        heading, _, rest = catalog.as_text(code).partition("\n")
        click.echo(f"{_output.bold(heading)}\n{rest}")
    else:
        for listed, title in shown.items():
            click.echo(f"{listed}  {title}")
    return 0
