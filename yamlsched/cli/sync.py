"""``yamlsched sync``: apply the file, and turn due slots into runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import read_schedule, show_messages, sync_options

if TYPE_CHECKING:
    from yamlsched.sync import Synced


@click.command(
    cls=Verb,
    help="Apply schedules.yaml to the database and create the runs of due slots. Also applies a file that a tick would "
    "hold back, or one for another environment.",
)
@sync_options
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> int:
    from yamlsched.sync import sync

    schedule = replace(read_schedule(settings, options), by_hand=True)
    with settings.connect(migrate=False) as connection:
        synced = sync(connection, schedule, at_once=True)
    show_messages(synced.messages)
    if settings.wants_json:
        import json

        changes = synced.changes
        document = {
            "format_version": 1,
            "namespace": synced.namespace,
            "applied": changes is not None,
            "added": changes.added if changes else [],
            "changed": changes.changed if changes else [],
            "retired": changes.retired if changes else [],
            "returned": changes.returned if changes else [],
            "runs": synced.runs,
            "skipped": sum(gap.slots for gap in synced.gaps),
        }
        click.echo(json.dumps(document))
    elif settings.verbosity >= 0:
        for line in _lines(synced):
            click.echo(line)
    return synced.exit_code


def _lines(synced: Synced) -> Iterator[str]:
    changes = synced.changes
    if changes:
        for what in ("added", "changed", "retired", "returned"):
            names = getattr(changes, what)
            if names:
                shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
                yield f"{what}: {shown}"
    if synced.runs or synced.gaps:
        skipped = sum(gap.slots for gap in synced.gaps)
        yield f"runs created: {synced.runs}" + (f"; slots skipped: {skipped}" if skipped else "")
    elif not changes and synced.exit_code == 0:
        yield "nothing to do"
