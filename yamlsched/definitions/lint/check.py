"""All advice about a file.

Advice speaks about what is written: a default of ours that does not suit a job is not held against its author.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from yamlsched.definitions.diagnostic import Diagnostic
from yamlsched.definitions.job import Job
from yamlsched.definitions.lint import cron_rules, file_rules, job_rules
from yamlsched.definitions.lint.context import Linter
from yamlsched.definitions.load import Loaded

RULES: tuple[Callable[[Linter, Job], None], ...] = (
    cron_rules.clock_change,
    cron_rules.day_fields,
    cron_rules.uneven_steps,
    cron_rules.late_days,
    cron_rules.simpler,
    job_rules.retries,
    job_rules.timeout,
    job_rules.catchup,
    job_rules.zone_names,
    job_rules.backoff,
    job_rules.lease,
    job_rules.jitter,
    job_rules.payload_size,
    job_rules.last_attempt,
)


def check(loaded: Loaded, now: datetime, owners: bool = False) -> list[Diagnostic]:
    """Return the advice for the valid jobs, and about secrets in any payload.

    Clock changes are looked for in the year after ``now``, an aware datetime. ``owners`` asks for an owner at every
    job.
    """
    linter = Linter(loaded, now)
    for job in loaded.jobs.values():
        for look in RULES:
            look(linter, job)
        if owners and not job.owner:
            spot = loaded.spot(job.name)
            linter.found.warning(spot.key, "YS410", f"{spot} has no owner", "Add owner: team-name")
    for calls in loaded.calls():
        job_rules.secrets(linter, calls)
        job_rules.commands(linter, calls)
    file_rules.crowds(linter)
    file_rules.odd_tags(linter)
    return linter.found.diagnostics()
