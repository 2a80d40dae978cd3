"""``yamlsched pause``: stop a job's slots and claims. A deploy does not end a pause."""

from __future__ import annotations

from typing import Any

import click

from yamlsched.act import pause, runs
from yamlsched.ask import history
from yamlsched.cli import _bulk, _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.timetable.times import TimeInput

HELP = """Pause jobs until they are resumed, or until a time.

The slots (scheduled times) of a paused job are recorded as skipped, and its runs are not claimed.
You can still enqueue runs. Running runs are not stopped: see cancel. A deploy does not end a pause:
only resume does, or the time of --until.
"""


@verb(HELP)
@_bulk.job_options
@click.option("--reason", metavar="TEXT", help="Why; shown in status.")
@_filters.time_option(
    "--until",
    help=(
        'End of the pause: 09:00 or "mon 08:00" (the next one), tomorrow or 2026-01-14T06:00 (in'
        " the time zone of JOB, else of the file), 2026-01-14T05:00Z, or 2h (from now)."
    ),
)
def command(
    settings: Settings, /, reason: str | None, until: TimeInput | None, **selection: Any
) -> int:
    def act(connection: Any, namespace: str, ids: list[int], who: str) -> list[runs.ActionResult]:
        timezone = history.timezone_of(connection, namespace, selection["names"], settings.file)
        return pause.pause(
            connection, namespace, ids, who, reason=reason, until=until, timezone=timezone
        )

    return _bulk.change_jobs(settings, "pause", act, **selection)
