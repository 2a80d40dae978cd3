"""Warnings about what is valid but probably not intended. The entry point is ``check.check``; all
get a ``Context``.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.node import Spot, is_defaults
from yamlsched.text import quoted
from yamlsched.timetable.cron import Cron
from yamlsched.timetable.slots import span
from yamlsched.timetable.zones import zone


class Linter:
    """Collects the warnings about a file. ``now`` is an aware datetime."""

    def __init__(self, loaded: Loaded, now: datetime) -> None:
        self.loaded = loaded
        self.findings = Findings(loaded.source)
        self.now = now
        self.expression: Spot | None = None  # that a rule of cron expressions looks at
        self._slots: dict[tuple[Cron, str], int] = {}

    def warn(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Warn about a job's key.

        A value from defaults may suit the other jobs: then the warning is at the job's cron
        expression.
        """
        spot = self.loaded.spot(job.name, key)
        notes = []
        if is_defaults(spot.path):
            notes = [(spot.key.node.start, f"{key} is set here")]
            spot = self.spot_of_cron(job)
        self.findings.warning(spot, code, f"job {quoted(job.name)}: {message}", remedy, notes=notes)

    def warn_where_written(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Warn about a key where it is written, even in defaults: the value suits no job."""
        spot = self.loaded.spot(job.name, key)
        self.findings.warning(spot, code, f"{spot}: {message}", remedy)

    def warn_about_cron(
        self, code: str, job: Job, field: int | None, message: str, remedy: str
    ) -> None:
        """Warn about a job's cron expression, with the caret under one of its fields."""
        spot, span = self.expression or self.spot_of_cron(job), None
        if field is not None and not spot.value.strip().startswith("@"):
            match = list(re.finditer(r"\S+", spot.value))[field]
            span = self.findings.source.span_within(spot.node, *match.span())
        self.findings.warning(spot, code, f"{spot}: {message}", remedy, span)

    def spot_of_cron(self, job: Job) -> Spot:
        """Return where the expressions of a job are written."""
        return self.loaded.spot(job.name, "crons" if job.cron and job.cron.parts else "cron")

    def environments(self, job: str) -> set[str]:
        """Return where a job is enabled; an empty name: in a file without environments."""
        enabled, listed = (
            self.loaded.written(job, "enabled"),
            self.loaded.written(job, "environments"),
        )
        if enabled is not None and enabled.value is False:
            return set()
        names = (
            {item.value for item in listed.children()}
            if listed
            else set(self.loaded.environments or ("",))
        )
        return names & {self.loaded.environment} if self.loaded.environment else names

    def slots(self, job: Job) -> int:
        """Return how many slots a job has in the year to come; enabled or not."""
        if job.cron is None:
            return 0
        key = job.cron, job.timezone
        if key not in self._slots:
            slots = span(job.cron, zone(job.timezone), self.now, self.now + timedelta(days=365))
            self._slots[key] = slots.count if slots else 0
        return self._slots[key]

    def is_written(self, job: Job, *keys: str) -> bool:
        return any(self.loaded.written(job.name, key) for key in keys)
