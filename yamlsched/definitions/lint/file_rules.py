"""Advice about the jobs of a file together."""

from __future__ import annotations

import re
from collections import defaultdict

from yamlsched.cron.expression import matching_days
from yamlsched.definitions.job import Job
from yamlsched.definitions.lint.context import Linter
from yamlsched.definitions.wording import quoted

MIN_CROWD = 5
"""From this number on, jobs that start in one minute are reported."""
MAX_NAMED = 4
MAX_TIMES_A_DAY = 24
MIN_WORD_CHARS = 4
REFERENCE_YEAR = 2024
"""A leap year: the dates of crons are compared in it, the same whenever the file is checked."""
EVERY_DAY = ("*", "*", "*")
MAX_COMMON_TAGS = 10_000
"""With more, tags are made by a program, which does not misspell them."""
MIN_TAG_CHARS = 3


def crowds(linter: Linter) -> None:
    """Point at minutes in which many jobs start. Jobs that start every few minutes are not counted."""
    by_minute: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in linter.loaded.jobs.values():
        if job.cron is not None and job.enabled and not job.spread and len(job.cron.times) <= MAX_TIMES_A_DAY:
            for minute in job.cron.times:
                by_minute[job.timezone, minute].append(job)
    seen: set[tuple[str, ...]] = set()
    for (timezone, minute), jobs in sorted(by_minute.items()):
        together, is_daily = _together(jobs) if len(jobs) >= MIN_CROWD else ([], False)
        names = tuple(job.name for job in together)
        if len(together) < MIN_CROWD or names in seen:
            continue
        seen.add(names)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        others = ", ".join(names[1:MAX_NAMED]) + more
        when = f"{minute // 60:02d}:{minute % 60:02d} {timezone}{'' if is_daily else ' on some days'}"
        message = f"{len(names)} jobs start at {when}, also {others}"
        linter.add_for_cron("YS405", together[0], None, message, "Add spread: 10m to them, or choose other minutes.")


def _together(jobs: list[Job]) -> tuple[list[Job], bool]:
    """Return the jobs that fire on the date on which most of them do, and whether they do so every day."""
    by_dates: dict[tuple[str, str, str], int] = defaultdict(int)
    for job in jobs:
        assert job.cron is not None
        by_dates[job.cron.date_fields] += 1
    fullest: tuple[int, int, int] = (0, 0, 0)
    for month in range(1, 13):
        on_day: dict[int, int] = defaultdict(int)
        for fields, count in by_dates.items():
            for day in matching_days(fields, REFERENCE_YEAR, month):
                on_day[day] += count
        if on_day:
            day = max(on_day, key=lambda day: on_day[day])
            fullest = max(fullest, (on_day[day], -month, -day))
    _, month, day = fullest
    together = [job for job in jobs if job.cron and -day in matching_days(job.cron.date_fields, REFERENCE_YEAR, -month)]
    return together, all(job.cron is not None and job.cron.date_fields == EVERY_DAY for job in together)


def _is_variant(tag: str, other: str) -> bool:
    """Return whether two tags differ on purpose: in numbers, or in a short part, as eu-west-1 and eu-west-2 do."""
    parts, others = (re.split("[^A-Za-z0-9]+", each) for each in (tag, other))
    if len(parts) != len(others):
        return False
    differing = [(a, b) for a, b in zip(parts, others, strict=True) if a != b]
    return all(
        min(len(a), len(b)) < MIN_WORD_CHARS or re.sub("[0-9]+", "", a) == re.sub("[0-9]+", "", b) for a, b in differing
    )


def _without_one(word: str) -> list[str]:
    """Return ``word``, and what is left of it without one of its characters.

    Two words have one of these in common exactly if one edit, or the exchange of two neighbours and little more, makes
    one of the other. Looking that up takes linear time, where comparing every two words does not.
    """
    return [word, *(word[:at] + word[at + 1 :] for at in range(len(word)))]


def odd_tags(linter: Linter) -> None:
    """Point at a tag of one job that is one edit away from a tag of several."""
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
