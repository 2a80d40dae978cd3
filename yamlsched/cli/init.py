"""``yamlsched init``: a project to begin with."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.resources import files
from pathlib import Path

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.errors import EnvironmentFailed


def _contents(file: Path) -> dict[Path, str]:
    """Return what is written where, by path."""
    templates, folder = files("yamlsched.templates"), file.parent
    return {
        file: templates.joinpath("schedules.yaml").read_text("utf-8"),
        folder / "schedules.schema.json": files("yamlsched.definitions")
        .joinpath("schedules.schema.json")
        .read_text("utf-8"),
        folder / "handlers" / "__init__.py": "",
        folder / "handlers" / "hello.py": templates.joinpath("hello.py").read_text("utf-8"),
        folder / ".github" / "workflows" / "schedules.yml": templates.joinpath("ci.yml").read_text("utf-8"),
    }


def crontab_line(file: Path) -> str:
    """Return a crontab line for ``file`` that works from cron's bare environment, and logs to syslog."""
    program = Path(sys.argv[0]).resolve()
    command = str(program) if program.name == "yamlsched" else f"{sys.executable} -m yamlsched"
    where = shlex.quote(str(file.parent.resolve()))
    line = f"cd {where} && {command} tick --file {shlex.quote(str(file.resolve()))} 2>&1 | logger -t yamlsched"
    return "* * * * * " + line.replace("%", r"\%")  # in a crontab a bare % ends the command


@click.command(
    cls=Verb,
    help="Begin a project: a commented schedules.yaml with its schema, a handler, a CI step; print the crontab line. "
    "What exists is never overwritten.",
)
@click.pass_obj
def command(settings: Settings) -> int:
    for path, text in _contents(settings.file).items():
        shown = os.path.relpath(path)
        if path.exists():
            click.echo(f"kept     {shown}")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise EnvironmentFailed(f"{shown} cannot be written: {error.strerror}") from error
        click.echo(f"written  {shown}")
    click.echo("\nTry it:")
    click.echo("    yamlsched validate && yamlsched tick && yamlsched next")
    click.echo("\nThen the one line for crontab (crontab -e):")
    if settings.dsn:
        click.echo("    # the DSN that you use here: crontab does not read your shell's files")
        click.echo("    YAMLSCHED_DSN=...")
    click.echo(f"    {crontab_line(settings.file)}")
    return 0
