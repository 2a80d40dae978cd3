"""``yamlsched import``: the schedules of other schedulers as schedules.yaml."""

from __future__ import annotations

import codecs
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from yamlsched.cli import FINDINGS, OK
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import Refused
from yamlsched.extras.importing import read, target, write
from yamlsched.extras.importing.model import Origin, Refusal, known_zone
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.findings import decode
from yamlsched.show.document import Document, Entries, Entry
from yamlsched.show.html import FORMATS

HELP = """Translate the schedules of cron, Kubernetes, Celery beat or systemd to schedules.yaml.

The result goes to stdout, or with --into to a file. Everything that was changed, dropped or left
out is reported on
stderr, also fire times that differ from those of the source within 400 days. A FILE is only read,
never executed;
"-" is stdin. --format is that of the report. Exit 1 if a job was left out.
"""


@verb(HELP, uses="", formats=("text", "markdown", "html"), name="import")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(read.KINDS),
    metavar="KIND",
    help=f"What the files are: {', '.join(read.KINDS)}. Default: detected from the content.",
)
@click.option("--timezone", metavar="TZ", help="The time zone where the source names none (UTC).")
@click.option(
    "--home",
    default="",
    metavar="DIR",
    help=(
        "The home directory of the crontab's user: cron starts commands there, and it becomes their"
        " cwd."
    ),
)
@click.option(
    "--policy",
    type=click.Choice(["faithful", "advised"]),
    default="faithful",
    metavar="POLICY",
    help=(
        "faithful: run as before. advised: with the defaults of yamlsched, which wait, catch up and"
        " retry, and with overlap, limit and spread instead of flock and a random sleep. Default:"
        " faithful."
    ),
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=(
        "Append the jobs to this schedules.yaml, which keeps its comments; it is created if it does"
        " not exist."
    ),
)
def command(
    settings: Settings,
    /,
    files: tuple[Path, ...],
    kind: str | None,
    timezone: str | None,
    home: str,
    policy: str,
    into: Path | None,
) -> int:
    try:
        zone = known_zone(timezone or "UTC").key
    except Refusal as error:
        raise click.BadParameter(str(error), param_hint="--timezone") from error
    data = None if into is None else target.read(into)
    place = target.Target.find(into, data) if into and data is not None else None
    loaded = target.load_valid(place) if place else None
    sources = [_source(file, zone, policy == "faithful", home) for file in files]
    batch = read.read(sources, kind, loaded, datetime.now(UTC))
    if batch.jobs:
        text = (
            write.append(place, loaded, batch.jobs)
            if place and loaded
            else write.as_file(batch.jobs, zone)
        )
        if into is not None:
            target.save(into, text, data)
        else:
            click.echo(text, nl=False)
    report = [Entry(line) for line in read.report(batch, loaded, has_zone=bool(timezone))]
    document = Document("yamlsched import", [Entries(report)])
    click.echo(FORMATS[settings.format](document), err=True)
    return FINDINGS if batch.has_refusals else OK


def _source(file: Path, zone: str, is_faithful: bool, home: str) -> Origin:
    if str(file) == "-":
        data, name = sys.stdin.buffer.read(schedule_file.MAX_FILE_BYTES + 1), "stdin"
    else:
        data, name = schedule_file.read(file), str(file)
    findings = decode(data.removeprefix(codecs.BOM_UTF8), name)
    for error in findings.diagnostics():
        raise Refused(f"{name}:{error.line}: {error.message}. {error.remedy}")
    return Origin(findings.source.text, name, zone, is_faithful, home)
