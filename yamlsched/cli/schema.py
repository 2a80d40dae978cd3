"""``yamlsched schema``: print the JSON Schema of schedules.yaml."""

from __future__ import annotations

import json

import click

from yamlsched.cli._settings import verb
from yamlsched.schedule.schema import FILE, INCLUDED


@verb("Print the JSON Schema (draft-07) of schedules.yaml.", uses="", formats=("text",))
@click.option("--included", is_flag=True, help="Print the schema of included files instead.")
def command(settings: object, included: bool) -> int:
    click.echo(json.dumps(INCLUDED, indent=2) if included else FILE.read_text("utf-8").rstrip("\n"))
    return 0
