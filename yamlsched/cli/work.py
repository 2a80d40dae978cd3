"""``yamlsched work``: run what is due, once or until it is stopped."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import click

from yamlsched.cli import FINDINGS, OK, _filters
from yamlsched.cli._flow import configure_log, limits, show_messages, target, work_options
from yamlsched.cli._settings import Settings, verb
from yamlsched.service import companions
from yamlsched.service.loop import loop
from yamlsched.service.work import work

WORKER_IDLE_EXIT = timedelta(minutes=5)
MAX_ID_CHARS = 100


def worker_id(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None or re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID_CHARS - 1}}}", value):
        return value
    raise click.BadParameter(
        f"{value!r} is not a valid id: letters, digits, dots, dashes and underscores, at most"
        f" {MAX_ID_CHARS}",
        context,
        option,
    )


@verb(
    "Run everything that is due, then exit; does not sync. With --loop, keep running, sync each"
    " minute, and start enqueued runs within milliseconds: for containers and systemd, instead"
    " of a crontab line.",
    uses="file dsn env namespace logging",
    formats=("text",),
)
@click.option("--loop", "is_loop", is_flag=True, help="Run until SIGTERM; sync each minute.")
@click.option("--migrate", is_flag=True, help="With --loop: create or upgrade the tables first.")
@click.option(
    "--reload",
    "reloads",
    is_flag=True,
    help="With --loop: reload when schedules.yaml or a Python file changes. For development.",
)
@_filters.duration_option(
    "--max-time",
    help="Claim runs for this long, such as 1h.",
)
@click.option(
    "--worker",
    metavar="ID",
    callback=worker_id,
    help=(
        "For programs that start workers: run as the worker with this id. Like --loop, but without"
        " sync and the host's concurrency limit. Exits when there is nothing to do."
    ),
)
@_filters.duration_option(
    "--idle-exit",
    help="With --loop or --worker: exit after this long without a run (5m with --worker).",
)
@work_options
def command(
    settings: Settings, /, is_loop: bool, migrate: bool, reloads: bool, **options: Any
) -> int:
    worker, idle_exit = options["worker"], options["idle_exit"]
    if worker is not None and not options["queues"]:
        raise click.UsageError("--worker requires --queue: the queues that the worker serves")
    if worker is not None and idle_exit is None:
        options["idle_exit"] = WORKER_IDLE_EXIT
    flow = work if worker is None and not is_loop else loop
    for_loops = {
        "--migrate": migrate,
        "--reload": reloads,
        "--queue none": options["queues"] == (),
        "--idle-exit": idle_exit is not None and worker is None,
    }
    if wrong := [name for name, is_passed in for_loops.items() if is_passed and not is_loop]:
        raise click.UsageError(f"{wrong[0]} requires --loop")
    configure_log(settings)
    tasks = [companions.reload_on_change] if reloads else []
    result = flow(target(settings, options, migrate), limits(options), show_messages, *tasks)
    return FINDINGS if result.has_findings else OK
