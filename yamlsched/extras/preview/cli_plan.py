"""``yamlsched plan``: what the next sync would do to the database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._flow import target
from yamlsched.cli._settings import Settings, verb
from yamlsched.extras.preview import model, plan, text
from yamlsched.extras.preview.cli_diff import days_option
from yamlsched.schedule import checks
from yamlsched.schedule.formats import as_text
from yamlsched.schedule.load import load
from yamlsched.show.html import FORMATS
from yamlsched.sync.in_use import REFUSED


@verb(
    "Show what the next sync would change in the database. Lists jobs that change, runs to"
    " create, and slots to skip with the reason, and says whether a tick would apply the file."
    " Changes nothing.",
    uses="file dsn env namespace",
    formats=tuple(FORMATS),
)
@days_option
@click.option(
    "--exit-code", "is_exit_code", is_flag=True, help="Exit 1 if a job or the file would change."
)
@_filters.path_option
def command(settings: Settings, /, days: int, is_exit_code: bool, **options: Any) -> int:
    schedule = target(settings, options).read_file()
    loaded = load(schedule.data, str(settings.file), settings.env or None, schedule.included)
    loaded = replace(loaded, namespace=settings.namespace or loaded.namespace)
    served = replace(loaded, served=schedule.served(loaded.queues))
    errors = checks.check(served, settings.file, schedule.handler_path).errors
    if errors:
        click.echo(as_text(errors, []), err=True)
        return FINDINGS
    with settings.connect() as connection:
        preview = plan.read(connection, schedule, loaded, days)
    settings.echo(FORMATS[settings.format](text.document(preview)), **model.document(preview))
    is_refused = preview.plan is not None and preview.plan.verdict in REFUSED
    return FINDINGS if is_refused or (is_exit_code and preview.has_changes) else OK
