"""``yamlsched attempt``: execute one attempt for a worker, on the host of an engine."""

from __future__ import annotations

import click

from yamlsched.cli import FAILED, FINDINGS, OK
from yamlsched.cli._flow import configure_log
from yamlsched.cli._settings import Settings, Verb
from yamlsched.errors import EnvironmentFailed


@click.command(
    cls=Verb,
    uses="file dsn logging",
    formats=("text",),
    help=(
        "Execute one attempt. The engines of executors start this; it is not for direct use. The"
        " DSN is that of this host: YAMLSCHED_DSN. The folder of --file is where handlers are"
        " imported from. Exit 1 if the attempt must not begin."
    ),
)
@click.argument("description")
@click.option("--probe", is_flag=True, help="Answer a question of yamlsched doctor.")
@click.option("--stop-with-stdin", is_flag=True, help="Stop when standard input is closed.")
@click.pass_obj
def command(settings: Settings, /, description: str, probe: bool, stop_with_stdin: bool) -> int:
    from yamlsched.extras.remote.agent import AgentResult, execute
    from yamlsched.extras.remote.spec import decode

    configure_log(settings)
    if probe:
        from yamlsched.extras.remote.probe import answer

        click.echo(
            answer(
                description, None if settings.is_embedded else settings.dsn, settings.file.resolve()
            )
        )
        return OK
    run, job, namespace = decode(description)
    if settings.is_embedded or not settings.dsn:
        raise EnvironmentFailed(
            "no DSN on the engine's host: set YAMLSCHED_DSN there, for example in its image"
        )
    result = execute(settings.dsn, run, job, namespace, settings.file.resolve(), stop_with_stdin)
    return {AgentResult.ENDED: OK, AgentResult.REFUSED: FINDINGS, AgentResult.UNREACHABLE: FAILED}[
        result
    ]
