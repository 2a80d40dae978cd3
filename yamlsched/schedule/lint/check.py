"""All warnings about a file.

Warnings are about what the file says: a default of yamlsched that does not suit a job is not
reported.
"""

from __future__ import annotations

from datetime import datetime

from yamlsched.schedule.lint import Linter, file, jobs
from yamlsched.schedule.lint import cron as expressions
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.source import Diagnostic

CRON_RULES = (
    expressions.clock_change,
    expressions.day_fields,
    expressions.uneven_steps,
    expressions.missing_days,
    jobs.retries,
    jobs.timeout,
    jobs.catchup,
    jobs.zone_names,
)
"""The rules for jobs with cron."""
JOB_RULES = (
    jobs.backoff,
    jobs.lease,
    jobs.last_attempt,
    jobs.pause_after,
    jobs.hooks,
    jobs.upstreams,
    expressions.no_slots,
)


def check(loaded: Loaded, now: datetime, require_owner: bool = False) -> list[Diagnostic]:
    """Return the warnings about the valid jobs, and about secrets and commands in all others.

    Clock changes are searched in the year after ``now``, an aware datetime.
    """
    linter = Linter(loaded, now)
    for job in loaded.jobs.values():
        for job_rule in JOB_RULES:
            job_rule(linter, job)
        if job.cron is not None and (
            loaded.written(job.name, "cron") or loaded.written(job.name, "crons")
        ):
            spot = linter.spot_of_cron(job)
            spots = spot.children() if job.cron.parts else (spot,)
            for linter.expression, cron in zip(spots, job.cron.expressions, strict=True):
                for rule in CRON_RULES:
                    rule(linter, job, cron)
            linter.expression = None
        if require_owner and not job.owner:
            spot = loaded.spot(job.name)
            linter.findings.warning(
                spot.key, "YS410", f"{spot} has no owner", "Add owner: team-name"
            )
    for calls in loaded.calls:
        jobs.secrets(linter, calls)
        jobs.executes_payload(linter, calls)
        file.check(linter, calls)
    if loaded.environment is None:
        file.crowded_minutes(linter)
        file.ending_calendars(linter)
    return linter.findings.diagnostics()
