"""``/workers``: the queues, how much there is to do in each, and the workers that serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from yamlsched.ask import health
from yamlsched.ask.queues import QueueHealth
from yamlsched.db.query import fetch
from yamlsched.extras.web.visit import Page, Visit

MAX_WORKERS = 200
LIVE_FOR = timedelta(seconds=60)
STATES = {
    "live": "running",
    "starting": "queued",
    "leaving": "paused",
    "lost": "failing",
    "failed": "dead",
    "ended": "retired",
}
"""The sign of each state of a worker."""


@dataclass(frozen=True)
class Worker:
    """A row of ``yamlsched.workers``."""

    id: str
    queue: str
    host: str | None
    path: str | None
    revision: str | None
    requested_at: datetime | None
    start_by: datetime | None
    reported_at: datetime | None
    seen_at: datetime | None
    leaving_at: datetime | None
    ended_at: datetime | None
    runs: int
    error: str | None

    def state(self, now: datetime) -> str:
        """Return how the worker is, in a word."""
        if self.ended_at is not None:
            return "failed" if self.error and not self.runs else "lost" if self.error else "ended"
        if self.seen_at is None:
            return "starting" if self.start_by is not None and now < self.start_by else "failed"
        if now > self.seen_at + LIVE_FOR:
            return "lost"
        return "live" if self.leaving_at is None else "leaving"


@dataclass(frozen=True)
class Workers:
    """The page. ``workers`` are the latest of all queues, those that are there first."""

    queues: Sequence[QueueHealth]
    unserved: Sequence[str]
    workers: Sequence[tuple[Worker, str]]
    has_more: bool
    signs = STATES


def show(visit: Visit) -> Workers:
    parameters = {"namespace": visit.namespace, "limit": MAX_WORKERS + 1}
    rows = fetch(visit.connection, Worker, "workers.latest", **parameters)
    now = health.read(visit.connection, visit.namespace, LIVE_FOR, [])
    return Workers(
        queues=now.queues,
        unserved=[queue.in_words(visit.now) for queue in now.unserved],
        workers=[(row, row.state(visit.now)) for row in rows[:MAX_WORKERS]],
        has_more=len(rows) > MAX_WORKERS,
    )


PAGE = Page("/workers", "workers.html", show)
