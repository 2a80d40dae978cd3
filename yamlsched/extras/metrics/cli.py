"""``yamlsched metrics``: for Prometheus."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.metrics import metrics

HELP = """Print the metrics in the Prometheus text format. One host reports for all
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
        write(textfile, content)
    else:
        click.echo(content.encode(), nl=False)  # as bytes: click would search a string for colours
    return 0


def write(path: Path, content: str) -> None:
    """Replace the file atomically, readable by all: its collector must not read half of it, and is
    another user.

    Raises EnvironmentFailed if the file cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise EnvironmentFailed(f"{path} cannot be written: {error.strerror}") from error
