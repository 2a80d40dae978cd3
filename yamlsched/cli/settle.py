"""``yamlsched settle``: say what became of an effect in doubt."""

from __future__ import annotations

import json

import click

from yamlsched.cli import _acting, _choice, _output
from yamlsched.cli._settings import Settings, Verb

HELP = """Say of the effect KEY, which is in doubt, whether it happened, after you have looked it up.

KEY is as `yamlsched show` and the run's error have it, such as run:118:mail. A process died inside run.once(): nobody
but you can find out, at the mail server or the provider, whether it was done.
"""


@click.command(cls=Verb, help=HELP)
@click.argument("key")
@click.option("--done/--not-done", "happened", default=None, help="It happened, or it did not and is to be done.")
@click.option("--result", metavar="JSON", help="With --done: what a later attempt must know of it, as effect.result.")
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
