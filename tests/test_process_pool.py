"""The pool of child processes: what it reports of attempts that are stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import (
    Attempt,
    Ended,
    EventQueue,
    ReturnedUnstarted,
    Succeeded,
    Workload,
)
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.local.pool import Pool
from yamlsched.worker.permits import ConcurrencyPermits

HANDLERS = """
import pathlib, time

def wait(folder, name):
    pathlib.Path(folder, "started").touch()
    while name and not pathlib.Path(folder, name).exists():
        time.sleep(0.001)
"""
STOPPED = AttemptEnd(EndKind.RELEASED, "stopped")


class PoolOfOne:
    """A pool of one child, its events, and attempts for it."""

    def __init__(self, folder: Path) -> None:
        (folder / "waiting.py").write_text(HANDLERS)
        self.folder, self.job = folder, Job("wait", handler="waiting.wait")
        self.events = EventQueue()
        workload = Workload(
            "", "default", {"wait": self.job}, ClaimScope(), folder / "schedules.yaml"
        )
        self.pool = Pool(workload, ConcurrencyPermits(folder / "permits", 1), self.events)
        self.seen: list[Any] = []

    def attempt(self, id: int, name: str = "") -> Attempt:
        payload = f'{{"folder": "{self.folder}", "name": "{name}"}}'
        run = ClaimedRun(id, "wait", None, None, 1, 5, payload, False, 60.0, "host:1:a")
        return Attempt(run, self.job, clock.now() + 60, clock.now())

    def ends(self, kind: type) -> list[int]:
        """Return the ids of the runs that events of ``kind`` are about."""
        found = [event for event in self.seen if isinstance(event, kind)]
        attempts = [
            a for event in found for a in ([event.attempt] if kind is Ended else event.attempts)
        ]
        return [attempt.run.id for attempt in attempts]

    async def until_seen(self, kind: type, *ids: int) -> None:
        while not set(ids) <= set(self.ends(kind)):
            self.seen += await self.events.wait()

    async def until_started(self) -> None:
        while not (self.folder / "started").exists():
            await asyncio.sleep(0.001)


def test_stopping_an_attempt_that_waits_in_a_child_does_not_kill_the_one_that_runs_there(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        pool = PoolOfOne(tmp_path)
        # given a job that is known to be quick, so that attempts wait in a child behind one that runs
        for id in range(1, 30):
            pool.pool.submit([pool.attempt(id)])
            await pool.until_seen(Succeeded, *([id] if id > 1 else []))
        (tmp_path / "started").unlink()
        running, waiting = pool.attempt(101, name="go"), pool.attempt(102)
        pool.pool.submit([running, waiting])
        await pool.until_started()

        # when the one that waits is stopped at once
        waiting.stopped = STOPPED
        pool.pool.stop([waiting], grace=0)
        (tmp_path / "go").touch()

        # then the other succeeds
        await pool.until_seen(ReturnedUnstarted, 102)
        while 101 not in pool.ends(Succeeded) + pool.ends(Ended):
            pool.seen += await pool.events.wait()
        assert pool.ends(Succeeded)[-1] == 101
        assert 101 not in pool.ends(Ended)
        await pool.pool.close()

    asyncio.run(asyncio.wait_for(story(), 30))
