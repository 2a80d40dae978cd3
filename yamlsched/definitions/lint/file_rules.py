"""Warnings about the jobs of a file together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from yamlsched.cron.expression import matching_days
from yamlsched.definitions.job import Job
from yamlsched.definitions.lint.context import Linter
from yamlsched.definitions.wording import quoted

MIN_CROWD_JOBS = 5
"""At least this many jobs that start in the same minute are reported."""
MAX_NAMED = 4
MAX_TIMES_A_DAY = 24
MIN_WORD_CHARS = 4
REFERENCE_YEAR = 2024
"""The dates of cron expressions are compared in this leap year, whenever the file is checked."""
EVERY_DAY = ("*", "*", "*")
MAX_COMMON_TAGS = 10_000
"""More tags than this come from a program, which does not misspell them."""
MIN_TAG_CHARS = 3


def crowded_minutes(linter: Linter) -> None:
    """Report minutes in which many jobs start. Jobs that start every few minutes are not counted."""
    by_minute: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in linter.loaded.jobs.values():
        if job.cron is not None and job.enabled and not job.spread and len(job.cron.times) <= MAX_TIMES_A_DAY:
            for minute in job.cron.times:
                by_minute[job.timezone, minute].append(job)
    seen: set[tuple[str, ...]] = set()
    for (timezone, minute), jobs in sorted(by_minute.items()):
        together = _on_busiest_date(jobs) if len(jobs) >= MIN_CROWD_JOBS else []
        names = tuple(job.name for job in together)
        if len(together) < MIN_CROWD_JOBS or names in seen:
            continue
        seen.add(names)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        others = ", ".join(names[1:MAX_NAMED]) + more
        is_daily = all(job.cron is not None and job.cron.date_fields == EVERY_DAY for job in together)
        when = f"{minute // 60:02d}:{minute % 60:02d} {timezone}{'' if is_daily else ' on some days'}"
        message = f"{len(names)} jobs start at {when}, also {others}"
        linter.warn_about_cron("YS405", together[0], None, message, "Add spread: 10m to them, or choose other minutes.")


def _on_busiest_date(jobs: list[Job]) -> list[Job]:
    """Return the jobs that fire on the first date of the year on which most of them do."""
    fields = {job.name: job.cron.date_fields for job in jobs if job.cron is not None}
    on_date: Counter[tuple[int, int]] = Counter()
    for date_fields, count in Counter(fields.values()).items():
        for month in range(1, 13):
            for day in matching_days(date_fields, REFERENCE_YEAR, month):
                on_date[month, day] += count
    if not on_date:
        return []
    month, day = min(on_date, key=lambda date: (-on_date[date], date))
    return [job for job in jobs if day in matching_days(fields[job.name], REFERENCE_YEAR, month)]


def _is_variant(tag: str, other: str) -> bool:
    """Return whether two tags differ on purpose: in numbers, or in a short part, such as eu-west-1 and eu-west-2."""
    parts, others = (re.split("[^A-Za-z0-9]+", each) for each in (tag, other))
    if len(parts) != len(others):
        return False
    differing = [(a, b) for a, b in zip(parts, others, strict=True) if a != b]
    return all(
        min(len(a), len(b)) < MIN_WORD_CHARS or re.sub("[0-9]+", "", a) == re.sub("[0-9]+", "", b) for a, b in differing
    )


def _without_one(word: str) -> list[str]:
    """Return ``word``, and ``word`` without each one of its characters.

    Two words that differ by one edit or by two swapped neighbours have one of these in common. Looking these up takes
    linear time, unlike a comparison of all pairs.
    """
    return [word, *(word[:at] + word[at + 1 :] for at in range(len(word)))]


def misspelt_tags(linter: Linter) -> None:
    """Report a tag of one job that is one edit away from a tag of several jobs."""
    users: dict[str, list[Job]] = defaultdict(list)
    for job in linter.loaded.jobs.values():
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
        candidates = _without_one(tag) if is_suspect and not linter.found.is_full else []
        found = (known[shortened] for shortened in candidates if shortened in known)
        meant = next((other for other in found if not _is_variant(tag, other)), "")
        if meant:
            spot = next(item for item in linter.loaded.spot(jobs[0].name, "tags").children() if item.value == tag)
            message = f"the tag {quoted(tag)} is used once, {quoted(meant)} by {len(users[meant])} jobs"
            linter.found.warning(spot, "YS415", message, f'Did you mean "{meant}"?')
