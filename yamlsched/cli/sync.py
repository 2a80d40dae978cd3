"""``yamlsched sync``: apply the file, and turn due slots into runs."""

from __future__ import annotations

import click

from yamlsched.cli._settings import Settings, Verb


@click.command(
    cls=Verb,
    help="Apply schedules.yaml to the database and make the runs of due slots. A file that a tick would hold back, "
    "or one for another environment, is applied at once: a person asks for it.",
)
@click.pass_obj
def command(settings: Settings) -> int:
    from yamlsched.sync import ScheduleFile, sync

    schedule = ScheduleFile.read(settings.file, settings.env)
    with settings.connect(migrate=False) as connection:
        synced = sync(connection, schedule, at_once=True)
    for message in synced.messages:
        click.echo(message, err=True)
    if settings.wants_json:
        import json

        changes, made = synced.changes, synced.made
        document = {
            "format_version": 1,
            "namespace": synced.namespace,
            "applied": changes is not None,
            "added": changes.added if changes else [],
            "changed": changes.changed if changes else [],
            "retired": changes.retired if changes else [],
            "returned": changes.returned if changes else [],
            "runs": made.runs if made else 0,
            "skipped": sum(gap.slots for gap in made.gaps) if made else 0,
        }
        click.echo(json.dumps(document))
    else:
        click.echo(_text(synced))
    return synced.exit_code
