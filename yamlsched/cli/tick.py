"""``yamlsched tick``: the one crontab line. Sync, then work, then exit."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.cli import FINDINGS, OK, _cron, _filters
from yamlsched.cli._flow import configure_log, limits, show_messages, target, work_options
from yamlsched.cli._settings import Settings, verb
from yamlsched.service.tick import tick

CLAIM_TIME = "55s"
"""Shorter than a minute: the next minute's tick continues."""


@verb(
    "Sync, run everything that is due, then exit: the crontab line. Meant to be called each"
    " minute. Applies schedules.yaml if it changed. Prints nothing if nothing happened.",
    uses="file dsn env namespace logging",
    formats=("text",),
)
@click.option(
    "--migrate", is_flag=True, help="Create or upgrade the tables first, on a server too."
)
@_filters.duration_option(
    "--max-time",
    default=CLAIM_TIME,
    help="Claim runs for this long.",
)
@click.option(
    "--cron",
    is_flag=True,
    help=(
        "For a crontab line: print nothing if all is well. Else cron mails you the errors, and a"
        " dead run as soon as it dies. All output also goes to syslog."
    ),
)
@work_options
def command(settings: Settings, /, migrate: bool, cron: bool, **options: Any) -> int:
    def run() -> int:
        configure_log(settings)
        result = tick(target(settings, options, migrate), limits(options), show_messages)
        return FINDINGS if result.has_findings else OK

    if not cron:
        return run()
    return _cron.run(settings.file, run)
