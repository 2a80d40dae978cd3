"""All warnings about a file.

Warnings are about what the file says: a default of yamlsched that does not suit a job is not
reported.
"""

from __future__ import annotations

from datetime import datetime

from yamlsched.schedule.lint import Linter, cron, jobs, values
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.source import Diagnostic

JOB_RULES = (
    cron.check,
    jobs.backoff,
    jobs.calendars,
    jobs.hooks,
    jobs.last_attempt,
    jobs.pause_after,
    jobs.upstreams,
    jobs.zone_names,
    values.executes_payload,
    values.secrets,
    values.shell_syntax,
)


def check(loaded: Loaded, now: datetime, require_owner: bool = False) -> list[Diagnostic]:
    """Return the warnings about the valid jobs.

    Clock changes are searched in the year after ``now``, an aware datetime.
    """
    linter = Linter(loaded, now)
    for job in loaded.jobs.values():
        for rule in JOB_RULES:
            rule(linter, job)
        if require_owner and not job.owner:
            spot = loaded.spot(job.name)
            linter.findings.warning(
                spot.key, "YS410", f"{spot} has no owner", "Add owner: team-name"
            )
    return linter.findings.diagnostics()
