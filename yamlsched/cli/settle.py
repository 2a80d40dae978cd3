"""``yamlsched settle``: report whether an effect in doubt happened."""

from __future__ import annotations

import json

import click

from yamlsched.cli import _acting, _choice, _output
from yamlsched.cli._settings import Settings, Verb

HELP = """Report whether the effect KEY, which is in doubt, happened.

KEY is printed by `yamlsched status`, by `yamlsched show RUN`, and in the run's error, for example run:118:mail. A
handler left run.once() without knowing whether the effect happened: look it up first, at the mail server or the
provider, which knows it by the idempotency key that `show` prints.
"""


@click.command(cls=Verb, help=HELP)
@click.argument("key")
@click.option(
    "--done/--not-done", "happened", default=None, help="It happened; or it did not, and the next attempt does it."
)
@click.option("--result", metavar="JSON", help="With --done: the effect.result that a later attempt reads.")
@_acting.by_option
@_choice.namespace_option
@click.pass_obj
def command(
    settings: Settings, /, key: str, happened: bool | None, result: str | None, by: str | None, namespace: str | None
) -> int:
    from yamlsched.operations import actions, effects, history

    if happened is None:
        raise click.UsageError("did it happen? Add --done or --not-done")
    if result is not None and not happened:
        raise click.UsageError("--result goes with --done: what did not happen has none")
    try:
        value = None if result is None else json.loads(result)
    except ValueError:
        raise click.BadParameter(f"{result!r} is no JSON: write for example '\"<id@example.org>\"'") from None
    with settings.connect() as connection:
        namespace = history.namespace_of(connection, namespace, settings.file)
        what = effects.settle(connection, namespace, key, by or actions.operator(), happened, value)
    click.echo(_output.document(key=key, done=happened) if settings.wants_json else what)
    return 0
