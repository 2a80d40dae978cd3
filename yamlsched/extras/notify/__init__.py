"""Notifications through the library Apprise: what was noted for the targets of schedules.yaml, as
messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from yamlsched.schedule.job import Job


def own_variables(jobs: Mapping[str, Job]) -> dict[str, str]:
    """Return the variables of targets that this host has, by the names of the targets: those of the
    file, which each of its jobs has.
    """
    targets = next((job.targets for job in jobs.values()), ())
    return {name: target.url_env for name, target in targets if os.environ.get(target.url_env)}
