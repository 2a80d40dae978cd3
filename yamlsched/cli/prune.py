"""``yamlsched prune``: apply the retention now, completely."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from yamlsched.cli import _output
from yamlsched.cli._settings import Settings, Verb

if TYPE_CHECKING:
    from yamlsched.operations.retention import HousekeepingReport

HELP = """Delete what is older than the retention in schedules.yaml.

Ticks do the same every few minutes, in small batches. Keys outlive their runs; unfinished runs are never pruned.
"""


@click.command(cls=Verb, uses="file dsn namespace", help=HELP)
@click.option("--seconds", type=click.FloatRange(0), help="Stop after this many seconds; later ticks prune the rest.")
@click.pass_obj
def command(settings: Settings, /, seconds: float | None) -> int:
    from yamlsched.operations import retention

    with settings.connect_in() as (connection, namespace):
        budget = float("inf") if seconds is None else seconds
        with _output.live_line() as show:
            done = retention.housekeep(connection, namespace, budget, progress=lambda done: show(pruned(done)))
    if settings.wants_json:
        click.echo(_output.document(namespace=namespace, **asdict(done)))
    else:
        rest = "" if done.complete else "; the time limit was reached, later ticks prune the rest"
        click.echo(f"{pruned(done)}; cancelled {_output.count(done.cancelled, 'run')} of removed jobs{rest}")
    return 0


def pruned(done: HousekeepingReport) -> str:
    parts = ((done.runs, "run"), (done.keys, "key"), (done.effects, "effect"))
    return "pruned " + ", ".join(_output.count(number, noun) for number, noun in parts)
