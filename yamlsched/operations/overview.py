"""How many runs ended in each hour. All numbers are bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.store import overview

HOUR = timedelta(hours=1)
SPANS = (timedelta(hours=48), timedelta(hours=12), timedelta(hours=3), timedelta(hours=1))
"""The longest one whose runs can be counted is shown."""
MAX_COUNTED = 50_000
"""Runs that are read to count those of a span."""


@dataclass(frozen=True)
class Hour:
    """How many runs ended within the hour that starts at ``at``, and how many of them died."""

    at: datetime
    ended: int
    dead: int


def per_hour(connection: psycopg.Connection[Any], namespace: str, job: str | None, now: datetime) -> list[Hour]:
    """Return the hours up to ``now``, oldest first; of no hour if too many runs ended even in the last one."""
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    for span in SPANS:
        start = end - span
        rows = {row.hour: row for row in overview.ended(connection, namespace, job, start, end, MAX_COUNTED + 1)}
        if sum(row.ended for row in rows.values()) <= MAX_COUNTED:
            hours = (start + nth * HOUR for nth in range(span // HOUR))
            return [Hour(at, rows[at].ended, rows[at].dead) if at in rows else Hour(at, 0, 0) for at in hours]
    return []
