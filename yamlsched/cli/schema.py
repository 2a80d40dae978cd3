"""``yamlsched schema``: print the JSON Schema of schedules.yaml."""

from __future__ import annotations

from importlib.resources import files

import click

from yamlsched.cli._settings import verb


@verb("Print the JSON Schema (draft-07) of schedules.yaml.", uses="", formats=("text",))
def command(settings: object) -> int:
    click.echo(
        files("yamlsched.schedule").joinpath("schedules.schema.json").read_text("utf-8"), nl=False
    )
    return 0
