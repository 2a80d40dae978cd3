"""Minutes in which many jobs start: they wait for each other's workers, and for the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from yamlsched.definitions.job import Job
from yamlsched.preview.effects import Rule, is_busy, rule
from yamlsched.preview.values import PileUp
from yamlsched.slots import MINUTE, slots
from yamlsched.sync.slot_plan import spread_offset
from yamlsched.zones import zone

MANY = 5

Start = tuple[Rule, timedelta]
"""What decides the minutes in which a job starts: its slots, and how far ``spread`` moves it."""


def worse(before: Mapping[str, Job], after: Mapping[str, Job], at: datetime, until: datetime) -> tuple[PileUp, ...]:
    """Return the minutes of (at, until] in which five or more jobs start, and fewer did; grouped by the jobs.

    Jobs that start every few minutes are left out: they share their minutes with everybody.
    """
    busy = lru_cache(maxsize=None)(lambda rule: is_busy(rule, at, until))
    olds, news = (
        {name: start for name, start in _starts(jobs).items() if not busy(start[0])} for jobs in (before, after)
    )
    minutes = lru_cache(maxsize=None)(lambda start: frozenset(_minutes(start, at, until)))
    concerned: set[datetime] = set()
    for start in {news[name] for name in news if olds.get(name) != news[name]}:
        concerned |= minutes(start)
    if not concerned:
        return ()

    def count(starts: Mapping[str, Start]) -> Counter[datetime]:
        found: Counter[datetime] = Counter()
        for start, jobs in Counter(starts.values()).items():
            for minute in minutes(start) & concerned:
                found[minute] += jobs
        return found

    many_before, many = count(olds), count(news)
    crowded = {minute for minute in many if many[minute] >= MANY and many[minute] > many_before[minute]}
    if not crowded:
        return ()
    jobs_at: dict[datetime, list[str]] = {}
    for name in sorted(news):
        for minute in minutes(news[name]) & crowded:
            jobs_at.setdefault(minute, []).append(name)
    groups: dict[tuple[str, ...], list[datetime]] = {}
    for minute in sorted(jobs_at):
        groups.setdefault(tuple(jobs_at[minute]), []).append(minute)
    return tuple(
        PileUp(jobs, len(found), found[0], max(many_before[minute] for minute in found))
        for jobs, found in sorted(groups.items(), key=lambda group: (-len(group[0]), group[1][0]))
    )


def _starts(jobs: Mapping[str, Job]) -> dict[str, Start]:
    found = {}
    for name, job in jobs.items():
        decides = rule(job)
        if decides is not None:
            found[name] = (decides, spread_offset(name, job.spread) // MINUTE * MINUTE)
    return found


def _minutes(start: Start, at: datetime, until: datetime) -> list[datetime]:
    (cron, timezone), shift = start
    return [slot.at + shift for slot in slots(cron, zone(timezone), at, until)]
