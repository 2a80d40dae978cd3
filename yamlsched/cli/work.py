"""``yamlsched work``: run what is due, once or until it is stopped."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._flow import configure_log, limits, show_messages, target, work_options
from yamlsched.cli._settings import Settings, Verb
from yamlsched.service.loop import loop
from yamlsched.service.work import work
from yamlsched.worker import companions


@click.command(
    cls=Verb,
    uses="file dsn env namespace logging",
    formats=("text",),
    help=(
        "Run everything that is due, then exit; does not sync. With --loop, keep running, sync each"
        " minute, and start enqueued runs within milliseconds: for containers and systemd, instead"
        " of a crontab line."
    ),
)
@click.option("--loop", "is_loop", is_flag=True, help="Run until SIGTERM; sync each minute.")
@click.option("--migrate", is_flag=True, help="With --loop: create or upgrade the tables first.")
@click.option(
    "--max-time",
    metavar="DURATION",
    type=_filters.duration,
    help="Claim runs for this long, such as 1h.",
)
@work_options
@click.pass_obj
def command(settings: Settings, /, is_loop: bool, migrate: bool, **options: Any) -> int:
    flow = loop if is_loop else work
    if migrate and not is_loop:
        raise click.UsageError(
            '--migrate requires --loop; before a single "work", run "yamlsched migrate"'
        )
    if options["queues"] == () and not is_loop:
        raise click.UsageError('--queue none leaves a single "work" nothing to do')
    configure_log(settings)
    result = flow(
        target(settings, options, migrate), limits(options), show_messages, companions.show
    )
    return FINDINGS if result.has_findings else OK
