"""``yamlsched resume``: end a pause."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.act import pause
from yamlsched.cli import _bulk
from yamlsched.cli._settings import Settings, Verb


@click.command(
    cls=Verb,
    uses="file dsn namespace",
    help="Resume paused jobs. The slots of the pause are not run: see backfill.",
)
@_bulk.job_options
@click.pass_obj
def command(settings: Settings, /, **selection: Any) -> int:
    return _bulk.change_jobs(settings, "resume", pause.resume, **selection, among=pause.paused)
