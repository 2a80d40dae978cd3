"""A schedule whose jobs follow others, its syncs and a worker, at an instant that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.schedules import HOUR, a_file, at, sync_by_hand
from yamlsched.runs.lifecycle import ClaimedRun, EnqueueBatch, Outcome, Status
from yamlsched.runs.release import ReleaseResult, release_followers
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]


SUCCESS, DEAD = Outcome(Status.SUCCEEDED), Outcome(Status.DEAD, error="no route to host")
HOURLY = {"cron": "0 * * * *"}


class World:
    """A schedule, its syncs, and a worker, at an instant that only the test moves."""

    def __init__(self, db: Db, dsn: str) -> None:
        self.db, self.now, self.claims = db, at("2026-01-14 01:30"), 0
        self.runner = asyncio.Runner()
        # a worker waits for no lock: a test fails instead of hanging
        options = "-c lock_timeout=10s"
        connect = psycopg.AsyncConnection.connect(
            dsn, autocommit=True, row_factory=namedtuple_row, options=options
        )
        self.connection = self.runner.run(connect)
        self.file = a_file()
        self.held: dict[int, ClaimedRun] = {}

    def apply(self, **jobs: Any) -> None:
        self.file = a_file(**jobs)
        sync_by_hand(self.db, self.file, self.now)

    def tick(self, instant: str | None = None) -> None:
        self.now = at(instant) if instant else self.now + HOUR
        sync(self.db, self.file, self.now)

    def claim(self, limit: int = 100) -> list[str]:
        """Claim as a worker does, until nothing more is due; return what was claimed, as ``job 02:00``."""
        claimed: list[ClaimedRun] = []
        while taken := self.runner.run(self._claim(limit)):
            claimed += taken
        self.held |= {run.id: run for run in claimed}
        return sorted(self.name(run.id) for run in claimed)

    async def _claim(self, limit: int) -> list[ClaimedRun]:
        self.claims += 1
        for step in range(3):
            token = f"claim {self.claims}.{step}"
            found, gated = await claiming.claim(
                self.connection, "default", token, limit, now=self.now
            )
            await claiming.claim_gated(
                self.connection, "default", found, f"gated {token}", gated, now=self.now
            )
            if found.unreleased:
                await release_followers(self.connection, "default", found.unreleased, self.now)
            if found.runs or not found.unreleased:
                break
        return found.runs

    def name(self, run_id: int) -> str:
        row: Any = self.db.execute(
            "select job_type, scheduled_for from yamlsched.job_runs where id = %s", [run_id]
        ).fetchone()
        return f"{row.job_type} {row.scheduled_for:%H:%M}" if row.scheduled_for else row.job_type

    def end(
        self,
        name: str,
        outcome: Outcome = SUCCESS,
        enqueued: dict[str, int] | None = None,
        key: str | None = None,
    ) -> None:
        """End the first claimed run ``name``, which has ``enqueued`` runs of jobs."""
        run = min(run for run in self.held.values() if self.name(run.id) == name)
        del self.held[run.id]
        batches = [
            EnqueueBatch(job, ["{}"] * count, [key] * count, None, None)
            for job, count in (enqueued or {}).items()
        ]
        writing = (
            store.finish(self.connection, "default", [(run, outcome)], enqueued=batches)
            if batches
            else store.finish(self.connection, "default", [(run, outcome)], now=self.now)
        )
        assert self.runner.run(writing)
        if batches:  # written by the clock of the database
            self.db.execute(
                "update yamlsched.job_runs set run_at = %s, finished_at = case when id = %s then %s end "
                "where %s in (id, parent_id) and (id = %s or finished_at is null)",
                [self.now, run.id, self.now, run.id, run.id],
            )

    def end_all(self, job: str, outcome: Outcome = SUCCESS) -> None:
        """End all claimed runs of ``job``, in one batch."""
        runs = [run for run in self.held.values() if run.job_type == job]
        if runs:
            ended = [(self.held.pop(run.id), outcome) for run in sorted(runs)]
            writing = store.finish(self.connection, "default", ended, now=self.now)
            assert len(self.runner.run(writing)) == len(runs)

    def settle(self) -> ReleaseResult:
        return self.runner.run(release_followers(self.connection, "default", None, self.now))

    def id(self, name: str) -> int:
        job, time = name.split()
        row: Any = self.db.execute(
            "select id from yamlsched.job_runs "
            "where job_type = %s and to_char(scheduled_for at time zone 'UTC', 'HH24:MI') = %s",
            [job, time],
        ).fetchone()
        return int(row.id)

    def states(self) -> list[str]:
        """Return all slot runs in the order of job and slot, with status and why each waits."""
        rows = self.db.execute(
            "select job_type, scheduled_for, status, blocked_on, unreleased from yamlsched.job_runs "
            "where scheduled_for is not null order by job_type, scheduled_for"
        )
        marks = {"closed": " (job)", "job": " (turn)", "limit": " (limit)", "after": " (waits)"}
        return [
            f"{one.job_type} {one.scheduled_for:%H:%M} {one.status}{marks.get((one.blocked_on or '').split('/')[0], '')}"
            for one in rows
        ]

    def id_of_held(self, name: str) -> int:
        return next(id for id in self.held if self.name(id) == name)

    def is_over(self, run_id: int) -> bool:
        row: Any = self.db.execute(
            "select status from yamlsched.job_runs where id = %s", [run_id]
        ).fetchone()
        return bool(row.status != "running")

    def job(self, name: str) -> int:
        row: Any = self.db.execute(
            "select id from yamlsched.job_definitions where job_type = %s", [name]
        ).fetchone()
        return int(row.id)

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


@pytest.fixture
def world(db: Db, dsn: str) -> Iterator[World]:
    world = World(db, dsn)
    yield world
    world.close()
