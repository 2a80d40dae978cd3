"""Imports of the cases in extras/importing/imports/, and of text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from yamlsched.cli import cli
from yamlsched.extras.importing import read, write
from yamlsched.extras.importing.model import Imported, Origin

IMPORTS = Path(__file__).resolve().parents[1] / "extras" / "importing" / "imports"
CASES = sorted(folder.parent.name for folder in IMPORTS.glob("*/input"))
POLICIES = ("faithful", "advised")
START = datetime(2026, 11, 22, 5, tzinfo=UTC)
ZONE = "Europe/Berlin"
WITH_HANDLERS = ("celery", "django_celery_beat")
MODULES = IMPORTS / "modules"


@dataclass(frozen=True)
class Output:
    """What an import prints."""

    text: str
    report: str


@cache
def import_case(case: str, policy: str) -> Output:
    files = sorted(path for path in (IMPORTS / case / "input").iterdir() if path.is_file())
    kind = case if case in ("crontab", "cron.d") else None  # the name of a crontab says nothing
    sources = [Origin(path.read_text(), path.name, ZONE, policy == "faithful") for path in files]
    found = read.read(sources, kind, None, START)
    return Output(
        write.as_file(found.jobs, ZONE), "\n".join(read.report(found, None, has_zone=True)) + "\n"
    )


def import_text(
    text: str, kind: str = "crontab", zone_name: str = "UTC", policy: str = "faithful"
) -> Imported:
    return read.read([Origin(text, "source", zone_name, policy == "faithful")], kind, None, START)


def only_job(found: Imported) -> dict[str, Any]:
    [job] = found.jobs
    return dict(job.keys)


def messages(found: Imported) -> str:
    return "\n".join(read.report(found, None, has_zone=True))


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(
        cli, ["import", *map(str, arguments)], input=input, standalone_mode=False
    )
