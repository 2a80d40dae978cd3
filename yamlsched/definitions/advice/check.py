"""All advice about a file.

Advice speaks about what is written: a default of ours that does not suit a job is not held against its author.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from yamlsched.definitions.advice import of_cron, of_files, of_jobs
from yamlsched.definitions.advice.shared import Advice
from yamlsched.definitions.diagnostic import Diagnostic, where
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import Loaded

LOOKS: tuple[Callable[[Advice, Job], None], ...] = (
    of_cron.clock_change,
    of_cron.day_fields,
    of_cron.uneven_steps,
    of_cron.late_days,
    of_cron.simpler,
    of_jobs.retries,
    of_jobs.timeout,
    of_jobs.catchup,
    of_jobs.zone_names,
    of_jobs.backoff,
    of_jobs.lease,
    of_jobs.jitter,
    of_jobs.payload_size,
    of_jobs.last_attempt,
)


def check(loaded: Loaded, now: datetime, owners: bool = False) -> list[Diagnostic]:
    """Return the advice for the valid jobs, and about secrets in any payload.

    Clock changes are looked for in the year after ``now``, an aware datetime. ``owners`` asks for an owner at every
    job.
    """
    advice = Advice(loaded, now)
    for job in loaded.jobs.values():
        for look in LOOKS:
            look(advice, job)
        if owners and not job.owner:
            advice.add("YS410", job, "", f"{where(('jobs', job.name))} has no owner", "Add owner: team-name")
    for calls in loaded.calls():
        of_jobs.secrets(advice, calls)
        of_jobs.commands(advice, calls)
    of_files.crowds(advice)
    of_files.odd_tags(advice)
    return advice.found.diagnostics()
