"""``yamlsched settle``: report whether an effect in doubt happened."""

from __future__ import annotations

import json

import click

from yamlsched.act import runs, settle
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, verb

HELP = """Record whether an effect in doubt happened.

An effect is in doubt if a handler left run.once() without knowing whether the effect happened.
`yamlsched status`,
`yamlsched show RUN` and the run's error print its KEY, for example run:118:mail. First look it up
at the mail server or
the provider, by the idempotency key that `show` prints.
"""


@verb(HELP)
@click.argument("key")
@click.option(
    "--done/--not-done",
    "happened",
    default=None,
    help="It happened; or it did not, and the next attempt performs it.",
)
@click.option(
    "--result", metavar="JSON", help="With --done: the effect.result that a later attempt reads."
)
@_filters.by_option
def command(
    settings: Settings, /, key: str, happened: bool | None, result: str | None, by: str | None
) -> int:
    if happened is None:
        raise click.UsageError("did it happen? Pass --done or --not-done")
    if result is not None and not happened:
        raise click.UsageError(
            "--result requires --done: an effect that did not happen has no result"
        )
    try:
        value = None if result is None else json.loads(result)
    except ValueError:
        raise click.BadParameter(
            f"{result!r} is not valid JSON: write for example '\"<id@example.org>\"'"
        ) from None
    with settings.connect_in() as (connection, namespace):
        what = settle.settle(connection, namespace, key, by or runs.operator(), happened, value)
    settings.echo(what, key=key, done=happened)
    return 0
