"""``yamlsched work``: carry out what is due."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.cli._settings import Settings, Verb
from yamlsched.cli._work import configure_log, look, work, work_options


@click.command(cls=Verb, help="Carry out the runs that are due, and leave; without sync.")
@click.option("--max-seconds", type=click.FloatRange(1), help="Claim for this long.")
@work_options
@click.pass_obj
def command(settings: Settings, /, max_seconds: float | None, **options: Any) -> int:
    from yamlsched import store
    from yamlsched.errors import Refused
    from yamlsched.sync import ScheduleFile

    configure_log(settings)
    schedule = ScheduleFile.read(settings.file, settings.env)
    with settings.database() as dsn, store.connect(dsn) as connection:
        seen = look(connection, schedule, settings.is_embedded)
        if seen.namespace is None:
            raise Refused(f'{settings.file} has not been applied to this database yet: run "yamlsched sync" first')
        tally = work(connection, dsn, seen.namespace, schedule, settings, None, max_seconds, **options)
    return 1 if tally["dead"] else 0
