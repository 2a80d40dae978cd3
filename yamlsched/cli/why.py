"""``yamlsched why``: what became of a slot, and why."""

from __future__ import annotations

import click

from yamlsched.cli import _choice
from yamlsched.cli._settings import Settings, Verb

HELP = """Say what became of the slot of JOB at a time, and why: its run, the gap it fell into, or what it waits for.

If that time is no slot: which field of the cron expression says no, and which slots are next to it. A time without an
offset is read on the job's own wall clock.
"""


@click.command(cls=Verb, help=HELP)
@click.argument("job")
@click.option("--at", required=True, metavar="TIME", help="2026-01-14T02:00 (local), or 2026-01-14T01:00Z.")
@_choice.namespace_option
@click.pass_obj
def command(settings: Settings, job: str, at: str, namespace: str | None) -> int:
    from yamlsched import wall
    from yamlsched.cli import _output
    from yamlsched.operations import history
    from yamlsched.sync.backfill import definition_for
    from yamlsched.sync.why import why
    from yamlsched.zones import zone

    with settings.connect() as connection:
        namespace = history.namespace_of(connection, namespace, settings.file)
        definition = definition_for(connection, namespace, job)
        instant, _ = wall.read(at, zone(definition.timezone))
        explained = why(connection, namespace, definition, instant)
    if settings.wants_json:
        fields = {name: value for name, value in vars(explained).items() if name != "lines"}
        click.echo(_output.document(**fields, explanation=explained.lines))
    else:
        key = f", key {explained.key}" if explained.key else ""
        click.echo(f"{job} at {wall.utc(instant)} ({explained.local}){key}")
        for line in explained.lines:
            click.echo(f"  {line}")
    return 0
