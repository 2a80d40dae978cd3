"""``yamlsched pause``: the operator's switch, which no deploy undoes."""

from __future__ import annotations

import click

from yamlsched.cli import _bulk, _filters, _output
from yamlsched.cli._settings import Settings, Verb
from yamlsched.times import TimeInput

HELP = """Pause jobs until they are resumed, or until a time.

Slots of a paused job are recorded as skipped, and its runs are not claimed. Enqueueing still works. Running runs are
not stopped: see cancel. A deploy does not end a pause; resume does, or the time of --until.
"""


@click.command(cls=Verb, help=HELP)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="All jobs with this tag.")
@click.option("--all", "everything", is_flag=True, help="All jobs of the namespace.")
@click.option("--reason", metavar="TEXT", help="Why; shown in status.")
@click.option(
    "--until",
    type=_filters.time,
    metavar="TIME",
    help="End of the pause: 09:00 or 2026-01-14T06:00 (in the time zone of JOB, else of the file), 2026-01-14T05:00Z, "
    "or 2h (from now).",
)
@_filters.by_option
@_filters.yes_option
@_filters.namespace_option
@click.pass_obj
def command(
    settings: Settings,
    /,
    jobs: tuple[str, ...],
    tags: tuple[str, ...],
    everything: bool,
    reason: str | None,
    until: TimeInput | None,
    by: str | None,
    yes: bool,
    namespace: str | None,
) -> int:
    from yamlsched.operations import actions, history, pausing
    from yamlsched.times import is_local

    with settings.connect_in(namespace) as (connection, namespace):
        ids = _bulk.select_jobs(connection, namespace, jobs, tags, everything)
        if not jobs:
            _bulk.confirm(f"pause {_output.count(len(ids), 'job')}", yes)
        who = by or actions.operator()
        timezone = "UTC"
        if until is not None and is_local(until):
            timezone = history.timezone_of(connection, namespace, jobs, settings.file)
        results = pausing.pause(connection, namespace, ids, who, reason=reason, until=until, timezone=timezone)
    return _bulk.report(settings, "pause", results)
