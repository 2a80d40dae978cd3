"""Advice about the jobs of a file together."""

from __future__ import annotations

from collections import defaultdict

from yamlsched.definitions.advice.shared import Advice
from yamlsched.definitions.diagnostic import WARNING, quoted
from yamlsched.definitions.job import Job

CROWD = 5
"""So many jobs on one minute are worth a word."""
MOST_NAMED = 4
MAX_COMMON_TAGS = 10_000
"""With more, tags are made by a program, which does not misspell them."""
MIN_TAG_CHARS = 3


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


def _without_one(word: str) -> list[str]:
    """Return ``word``, and what is left of it without one of its characters.

    Two words have one of these in common exactly if one edit, or the exchange of two neighbours and little more, makes
    one of the other. Looking that up takes linear time, where comparing every two words does not.
    """
    return [word, *(word[:at] + word[at + 1 :] for at in range(len(word)))]


def odd_tags(advice: Advice) -> None:
    """Point at a tag of one job that is one edit away from a tag of several."""
    users: dict[str, list[Job]] = defaultdict(list)
    for job in advice.loaded.jobs.values():
        for tag in job.tags:
            users[tag].append(job)
    common = [tag for tag, jobs in users.items() if len(jobs) > 1]
    if len(common) > MAX_COMMON_TAGS:
        return
    known: dict[str, str] = {}
    for tag in common:
        for shortened in _without_one(tag):
            known.setdefault(shortened, tag)
    for tag, jobs in users.items():
        is_suspect = len(jobs) == 1 and len(tag) > MIN_TAG_CHARS
        candidates = _without_one(tag) if is_suspect and not advice.found.is_full else []
        meant = next((known[shortened] for shortened in candidates if shortened in known), "")
        if meant:
            node, path, use = advice.loaded.value(jobs[0].name, "tags")
            number, item = next((number, item) for number, item in enumerate(node.value) if item.value == tag)
            message = f"the tag {quoted(tag)} is used once, {quoted(meant)} by {len(users[meant])} jobs"
            remedy = f'Did you mean "{meant}"?'
            advice.found.add("YS415", item, (*path, number), use, message, remedy, severity=WARNING)
