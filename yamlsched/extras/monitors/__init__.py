"""Monitoring services that raise an alarm when a signal does not arrive: heartbeat URLs and
Sentry's cron monitors.
"""

from __future__ import annotations

import os

VARIABLES = ("YAMLSCHED_HEARTBEAT_URL", "YAMLSCHED_SENTRY_DSN")


def are_set() -> bool:
    """Return whether the environment names a monitoring service."""
    return any(name.startswith(VARIABLES) for name in os.environ)
