"""What the verbs of the service share: their options, and how they show messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from yamlsched import log
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings
from yamlsched.schedule.file import NO_QUEUE, absolute
from yamlsched.service.steps import Target, WorkOptions
from yamlsched.show.terminal import printable


def queue_names(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the names of an option; () for ``none``."""
    if not values:
        return None
    value = ",".join(values)
    if value.strip() == NO_QUEUE:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    for name in names:
        if name == NO_QUEUE:
            raise click.UsageError(f"{option.opts[0]}: {NO_QUEUE} cannot be combined with queues")
        if not re.fullmatch("[a-z][a-z0-9_]{0,62}", name):
            raise click.UsageError(
                f'{option.opts[0]}: "{name}" is not a queue name: write default, or'
                " --queue mail,default for several"
            )
    return names


work_options = _filters.combine(
    click.option(
        "--concurrency",
        type=click.IntRange(1, 1000),
        help="Maximum number of parallel runs on this host (number of cores, at least 4).",
    ),
    click.option(
        "--queue",
        "queues",
        metavar="NAME,...",
        multiple=True,
        callback=queue_names,
        help="Serve only these queues, or none. Default: all queues that are not dedicated.",
    ),
    click.option("--max-runs", type=click.IntRange(1), help="Claim at most this many runs."),
    _filters.duration_option(
        "--grace",
        default="30s",
        help="How long handlers may keep running after SIGTERM, such as 30s.",
    ),
    _filters.path_option,
)
"""The options of a command that runs handlers."""


def target(settings: Settings, options: Mapping[str, Any], migrate: bool = False) -> Target:
    """Return what the command line selects. The embedded database is always upgraded, a server only
    by ``migrate``.
    """
    return Target(
        file=absolute(settings.file),
        database=settings.database,
        environment=settings.env,
        namespace=settings.namespace,
        handler_folders=tuple(str(absolute(Path(folder))) for folder in options["paths"]),
        queues=options.get("queues"),
        may_migrate=migrate or settings.is_embedded,
    )


def limits(options: Mapping[str, Any]) -> WorkOptions:
    """Return the limits of a worker that the command line sets."""
    names = ("concurrency", "max_runs", "max_time", "grace", "idle_exit", "worker")
    return WorkOptions(**{name: options[name] for name in names if name in options})


def show_messages(messages: Sequence[str]) -> None:
    """Print messages. They may quote what other hosts have written, which must not control the
    terminal.
    """
    if not messages:
        return
    for message in messages:
        log.message("warning", "sync.message", printable(message), message=message)


def configure_log(settings: Settings) -> None:
    log.configure(settings.verbosity, settings.log_format == "json")
