"""The findings, and what the looks at jobs share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache

from yamlsched.cron.expression import Cron, matching_days
from yamlsched.definitions.diagnostic import WARNING
from yamlsched.definitions.findings import Findings
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import Loaded
from yamlsched.definitions.wording import where

DAY = 1440


class Linter:
    """The findings, and what the looks at single jobs share."""

    def __init__(self, loaded: Loaded, now: datetime) -> None:
        self.loaded = loaded
        self.found = Findings(loaded.source)
        self.now = now

    def add(
        self, code: str, job: Job, key: str, message: str, remedy: str, notes: Iterable[tuple[int, str]] = ()
    ) -> None:
        """Advise about a job's key, or about the job if ``key`` is empty.

        What comes from defaults may suit the other jobs: then the job's cron expression is pointed at.
        """
        keys = (key,) if key else ()
        node, path, use = self.loaded.value(job.name, *keys)
        spot = node if key else node.key or node
        if path[0] == "defaults":
            notes = [*notes, ((node.key or node).at, f"{key} is set here")]
            spot, path, use = self.loaded.value(job.name, "cron")
        self.found.add(code, spot, path, use, message, remedy, notes=notes, severity=WARNING)

    def add_where_written(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Advise about a key where it is written, be it in defaults: it suits no job."""
        node, path, use = self.loaded.value(job.name, key)
        self.found.add(code, node, path, use, f"{where(path)}: {message}", remedy, severity=WARNING)

    def add_for_cron(
        self, code: str, job: Job, field: int | None, message: str, remedy: str, notes: Iterable[tuple[int, str]] = ()
    ) -> None:
        """Advise about a job's cron expression, with the caret under one of its fields."""
        node, path, use = self.loaded.value(job.name, "cron")
        span = None
        if field is not None and not node.value.strip().startswith("@"):
            match = list(re.finditer(r"\S+", node.value))[field]
            span = self.found.source.within(node.value, node.at, node.end, node.style, match.start(), match.end())
        message = f"{where(path)}: {message}"
        self.found.add(code, node, path, use, message, remedy, span, notes, severity=WARNING)

    def is_written(self, job: Job, *keys: str) -> bool:
        return any(self.loaded.value(job.name, key)[1] in (("jobs", job.name, key), ("defaults", key)) for key in keys)


@lru_cache(maxsize=16384)
def interval(expression: Cron) -> timedelta:
    """Return the shortest time between two slots on the wall clock."""
    days: list[int] = []
    for month in range(1, 13):
        first = datetime(2024, month, 1).toordinal()
        days += [first + day - 1 for day in matching_days(expression.date_fields, 2024, month)]
    apart = min((b - a for a, b in itertools.pairwise(days)), default=366)
    times = expression.times
    gaps = [b - a for a, b in itertools.pairwise(times)]
    gaps.append(apart * DAY - times[-1] + times[0])
    return timedelta(minutes=min(gaps))
