"""Advice about the jobs of a file together."""

from __future__ import annotations

from collections import defaultdict

from yamlsched.definitions.advice.shared import Advice
from yamlsched.definitions.diagnostic import WARNING, near, quoted
from yamlsched.definitions.job import Job

CROWD = 5
"""So many jobs on one minute are worth a word."""
MOST_NAMED = 4


def crowds(advice: Advice) -> None:
    """Point at minutes of the day at which many jobs begin. Jobs of every few minutes are in no crowd."""
    by_minute: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in advice.loaded.jobs.values():
        if job.cron is not None and job.enabled and not job.spread and len(job.cron.times) <= 24:
            for minute in job.cron.times:
                by_minute[job.timezone, minute].append(job)
    seen: set[tuple[str, ...]] = set()
    for (timezone, minute), jobs in sorted(by_minute.items()):
        names = tuple(job.name for job in jobs)
        if len(jobs) < CROWD or names in seen:
            continue
        seen.add(names)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        others = ", ".join(names[1:MOST_NAMED]) + more
        message = f"{len(jobs)} jobs begin at {minute // 60:02d}:{minute % 60:02d} {timezone}, also {others}"
        advice.add_for_cron("YS405", jobs[0], None, message, "Add spread: 10m to them, or choose other minutes.")


def odd_tags(advice: Advice) -> None:
    """Point at a tag of one job that looks like a misspelt tag of several."""
    users: dict[str, list[Job]] = defaultdict(list)
    for job in advice.loaded.jobs.values():
        for tag in job.tags:
            users[tag].append(job)
    common = [tag for tag, jobs in users.items() if len(jobs) > 1]
    for tag, jobs in users.items():
        meant = near(tag, common, 0.85) if len(jobs) == 1 and len(tag) > 3 else None
        if meant:
            node, path, use = advice.loaded.value(jobs[0].name, "tags")
            number, item = next((number, item) for number, item in enumerate(node.value) if item.value == tag)
            message = f"the tag {quoted(tag)} is used once, {quoted(meant)} by {len(users[meant])} jobs"
            remedy = f'Did you mean "{meant}"?'
            advice.found.add("YS415", item, (*path, number), use, message, remedy, severity=WARNING)
