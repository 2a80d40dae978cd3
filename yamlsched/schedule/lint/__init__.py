"""Warnings about what is valid but probably not intended. The entry point is ``check.check``; all get a ``Context``."""

from __future__ import annotations

import re
from datetime import datetime

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded
from yamlsched.text import quoted


class Linter:
    """Collects the warnings about a file. ``now`` is an aware datetime."""

    def __init__(self, loaded: Loaded, now: datetime) -> None:
        self.loaded = loaded
        self.found = Findings(loaded.source)
        self.now = now

    def warn(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Warn about a job's key.

        A value from defaults may suit the other jobs: then the warning is at the job's cron expression.
        """
        spot = self.loaded.spot(job.name, key)
        notes = []
        if spot.path[0] == "defaults":
            notes = [(spot.key.node.start, f"{key} is set here")]
            spot = self.loaded.spot(job.name, "cron")
        self.found.warning(spot, code, f"job {quoted(job.name)}: {message}", remedy, notes=notes)

    def warn_where_written(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Warn about a key where it is written, even in defaults: the value suits no job."""
        spot = self.loaded.spot(job.name, key)
        self.found.warning(spot, code, f"{spot}: {message}", remedy)

    def warn_about_cron(self, code: str, job: Job, field: int | None, message: str, remedy: str) -> None:
        """Warn about a job's cron expression, with the caret under one of its fields."""
        spot = self.loaded.spot(job.name, "cron")
        span = None
        if field is not None and not spot.value.strip().startswith("@"):
            match = list(re.finditer(r"\S+", spot.value))[field]
            span = self.found.source.span_within(spot.node, *match.span())
        self.found.warning(spot, code, f"{spot}: {message}", remedy, span)

    def environments(self, job: str) -> set[str]:
        """Return where a job is enabled; an empty name: in a file without environments."""
        enabled, listed = self.loaded.written(job, "enabled"), self.loaded.written(job, "environments")
        if enabled is not None and enabled.value is False:
            return set()
        return {item.value for item in listed.children()} if listed else set(self.loaded.environments or ("",))

    def is_written(self, job: Job, *keys: str) -> bool:
        return any(self.loaded.written(job.name, key) for key in keys)
