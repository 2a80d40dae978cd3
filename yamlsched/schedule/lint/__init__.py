"""Warnings about what is valid but probably not intended. The entry point is ``jobs.check``; its
rules get a ``Linter``.
"""

from __future__ import annotations

from datetime import datetime

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded
from yamlsched.text import quoted


class Linter:
    """Collects the warnings about a file. ``now`` is an aware datetime."""

    def __init__(self, loaded: Loaded, now: datetime) -> None:
        self.loaded = loaded
        self.findings = Findings(loaded.source)
        self.now = now

    def warn(self, code: str, job: Job, key: str, message: str, remedy: str) -> None:
        """Warn about a job's key where it is written, even in defaults."""
        spot = self.loaded.spot(job.name, key)
        self.findings.warning(spot, code, f"job {quoted(job.name)}: {message}", remedy)

    def is_off(self, name: str) -> bool:
        """Return whether a job is not enabled in the environment that is checked. Nobody runs a
        file with environments without one of them.
        """
        loaded = self.loaded
        is_checked = bool(loaded.environment) or not loaded.environments
        return is_checked and name in loaded.jobs and not loaded.jobs[name].enabled
