"""``yamlsched metrics``: for Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from yamlsched.cli._settings import Settings, verb
from yamlsched.extras.metrics import metrics

HELP = """Write the metrics in the database in the Prometheus text format. One host reports for all
hosts.

For node_exporter's textfile collector: metrics --textfile /var/lib/node_exporter/yamlsched.prom
"""


@verb(HELP, formats=("text",))
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace this file atomically.",
)
def command(settings: Settings, /, textfile: Path | None) -> int:
    with settings.connect_in() as (connection, namespace):
        content = metrics.text(connection, namespace)
    if textfile:
        metrics.write(textfile, content)
    else:
        click.echo(content.encode(), nl=False)  # as bytes: click would search a string for colours
    return 0
