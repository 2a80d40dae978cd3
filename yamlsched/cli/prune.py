"""``yamlsched prune``: apply the retention now, completely."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from psycopg import Connection

from yamlsched.act import prune
from yamlsched.act.prune import Archive
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import Refused
from yamlsched.schedule import file
from yamlsched.show import terminal

STDOUT = "-"

HELP = """Delete what is older than the retention in schedules.yaml.

Ticks do the same every few minutes, in small batches. Keys outlive their runs; unfinished runs are
never pruned.

With retention.archive in the file, or --archive, each batch is first written as lines of JSON.
"""


@verb(HELP)
@click.option(
    "--archive",
    metavar="DIR|-",
    help="Write what is deleted to files in DIR, or to stdout. Overrides retention.archive.",
)
@click.option("--no-archive", "is_forgotten", is_flag=True, help="Delete without an archive.")
def command(settings: Settings, /, archive: str | None, is_forgotten: bool) -> int:
    is_stdout = archive == STDOUT
    if is_forgotten and archive is not None:
        raise click.UsageError("pass --archive or --no-archive")
    if is_stdout and settings.wants_json:
        raise click.UsageError("--archive - writes the archive to stdout: leave out --format json")
    if archive == "":
        raise click.UsageError("--archive: pass a folder, or - for stdout")
    with settings.connect_in() as (connection, namespace):
        kept = None if is_forgotten else _archive(settings, connection, namespace, archive)
        done = prune.housekeep(connection, namespace, float("inf"), archive=kept)
    parts = ((done.runs, "run"), (done.keys, "key"), (done.effects, "effect"))
    pruned = ", ".join(terminal.count(number, noun) for number, noun in parts)
    cancelled = terminal.count(done.cancelled, "run")
    text = f"pruned {pruned}; cancelled {cancelled} of removed jobs"
    settings.echo(text, err=is_stdout, namespace=namespace, **asdict(done))
    return 0


def _archive(
    settings: Settings, connection: Connection[Any], namespace: str, target: str | None
) -> Archive | None:
    """Return the archive to use: ``target``, else the one of the file. Raises Refused if it cannot
    be found.
    """
    if target == STDOUT:
        return prune.StdoutArchive()
    if target is not None:
        return prune.FolderArchive(Path(target), namespace)
    if not prune.is_archived(connection, namespace):
        return None
    archive = None
    if settings.file.is_file():
        archive = prune.own_archive(file.read(settings.file), settings.file, namespace)
    if archive is None:
        raise Refused(
            f"the file in use has retention.archive, but {settings.file} has not: pass --file,"
            " --archive DIR, or --no-archive to delete without an archive"
        )
    return archive
