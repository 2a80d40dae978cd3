"""All warnings about a file.

Warnings are about what the file says: a default of yamlsched that does not suit a job is not reported.
"""

from __future__ import annotations

from datetime import datetime

from yamlsched.schedule.lint import Linter
from yamlsched.schedule.lint import cron as cron_rules
from yamlsched.schedule.lint import file as file_rules
from yamlsched.schedule.lint import jobs as job_rules
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.source import Diagnostic

CRON_RULES = (
    cron_rules.clock_change,
    cron_rules.day_fields,
    cron_rules.uneven_steps,
    cron_rules.missing_days,
    cron_rules.shorter_expression,
    job_rules.retries,
    job_rules.timeout,
    job_rules.spread_skips,
    job_rules.catchup,
    job_rules.zone_names,
)
"""The rules for jobs with cron."""
JOB_RULES = (
    job_rules.backoff,
    job_rules.lease,
    job_rules.jitter,
    job_rules.payload_size,
    job_rules.last_attempt,
    job_rules.required_variables,
)


def check(loaded: Loaded, now: datetime, require_owner: bool = False) -> list[Diagnostic]:
    """Return the warnings about the valid jobs, and about secrets and commands in all others.

    Clock changes are searched in the year after ``now``, an aware datetime.
    """
    linter = Linter(loaded, now)
    for job in loaded.jobs.values():
        for job_rule in JOB_RULES:
            job_rule(linter, job)
        if job.cron is not None:
            for cron_rule in CRON_RULES:
                cron_rule(linter, job, job.cron)
        if require_owner and not job.owner:
            spot = loaded.spot(job.name)
            linter.found.warning(spot.key, "YS410", f"{spot} has no owner", "Add owner: team-name")
    for calls in loaded.calls:
        job_rules.secrets(linter, calls)
        job_rules.executes_payload(linter, calls)
        file_rules.check(linter, calls)
    file_rules.crowded_minutes(linter)
    file_rules.misspelt_tags(linter)
    return linter.found.diagnostics()
