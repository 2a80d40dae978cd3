"""Statements of the calendar of coming slots: see ``sql/calendar.sql``."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


class CalendarJob(NamedTuple):
    """What decides the coming slots of a job, and what describes it. A named tuple: there may be many."""

    job_type: str
    schedule: str | None
    timezone: str
    spread: timedelta
    enabled: bool
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    description: str
    owner: str
    tags: list[str]

    def is_paused(self, now: datetime) -> bool:
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > now)


def jobs(connection: psycopg.Connection[Any], namespace: str) -> list[CalendarJob]:
    """Return the jobs of a namespace by name, without retired ones."""
    return fetch(connection, CalendarJob, load("calendar")["jobs"], {"namespace": namespace})
