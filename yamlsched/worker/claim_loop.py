"""When a worker claims, from which queue, and how much."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from yamlsched import log
from yamlsched.worker.claims import POLL_INTERVAL_SECONDS
from yamlsched.worker.executor import wait
from yamlsched.worker.queues import ServedQueue

if TYPE_CHECKING:
    from yamlsched.worker.worker import Worker

ONE_SESSION_AFTER_SECONDS = 5.0  # without an attempt: it closes the others


class ClaimLoop:
    """Claims for ``worker`` whenever there is room for more, and wakes up by ``wakeup``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.wakeup = asyncio.Event()
        self.is_claiming = False  # or about to
        self.is_outdated = self._is_paused = False
        # where the links of the file's path led when it was last read
        self.read_path = str(worker.workload.file)
        # called when they lead elsewhere; without it, it is the end
        self.on_moved: Callable[[], None] | None = None

    async def run(self) -> None:
        """Claim whenever there is room for more, until cancelled."""
        worker = self._worker
        while True:
            self.wakeup.clear()
            # the upkeep included: it writes outcomes, which are to be reported
            may_wait = self.is_claiming = True
            await self._report()
            if not self._must_not_claim() and await worker.upkeep.run_if_due():
                worker.queues.poll_now()
                worker.events.wake()
            for queue in worker.queues.in_turn():
                limit = self._room(queue)
                if limit > 0 or queue.claims.has_lost_claims:
                    await queue.claims.release_lost_claims()
                    if limit > 0 and await self._is_ready(queue) and not self._must_not_claim():
                        await self._claim(queue, limit)
                    worker.events.wake()
                may_wait = may_wait and (limit <= 0 or queue.claims.is_exhausted)
            worker.queues.release_idle_capacity()
            self.is_claiming = False
            if may_wait:
                if worker.is_continuous:
                    if worker.is_idle_for(ONE_SESSION_AFTER_SECONDS):
                        await worker.sessions.close_unneeded()
                    worker.sessions.claim.watch()
                idle = (queue.claims.idle_seconds for queue in worker.queues)
                await wait(self.wakeup, min(idle, default=POLL_INTERVAL_SECONDS))
                worker.sessions.claim.unwatch()

    async def _claim(self, queue: ServedQueue, limit: int) -> None:
        worker = self._worker
        scope = worker.workload.scope
        skipped = worker.budget.too_long(scope) if worker.is_continuous else ()
        answer = await queue.claims.claim(limit, scope, skipped)
        if answer is None:
            return
        claim, sent_at = answer
        worker.report.note_claimed(claim.runs)
        if claim.runs:
            worker.budget.note_claimed(claim.runs)
            worker.submit(queue, claim.runs, sent_at, scope)
            worker.has_work.set()
        worker.events.wake()
        await asyncio.sleep(0)  # what was claimed is handed out before the next claim is sent

    async def _report(self) -> None:
        """Report that this worker is there. It leaves if another process has its id now."""
        worker = self._worker
        if worker.registration is None:
            return
        queues = [queue.name for queue in worker.queues]
        is_leaving = not worker.is_within_limits()
        is_known = await worker.registration.report_if_due(
            worker.sessions.claim, queues, is_leaving
        )
        if not is_known and worker.stopped_at is None:
            log.warning("worker.replaced", worker=worker.registration.name.id)
            worker.stop()

    async def _is_ready(self, queue: ServedQueue) -> bool:
        """Open the sessions that a claim needs. An idle worker first looks for what is due, with
        the one session that it has.
        """
        worker = self._worker
        if (
            worker.is_continuous
            and not worker.sessions.is_open
            and not await queue.claims.look(worker.workload.scope)
        ):
            return False
        return await worker.sessions.open()

    def _room(self, queue: ServedQueue) -> int:
        """Return how many more runs to claim; they can start soon."""
        worker = self._worker
        if queue.claims.is_exhausted or self._must_not_claim() or not worker.outcomes.has_room():
            return 0
        capacity = queue.executor.capacity()
        if capacity.parallel == 0:
            # other ticks of this host have all permits, and do what is due
            queue.claims.set_exhausted()
            return 0
        room = worker.budget.room(capacity)
        if (concurrency := queue.rules.concurrency) is None:
            return room
        executing = [held for held in worker.attempts if held.queue == queue.name]
        return min(room, concurrency - sum(held.took is None for held in executing))

    def _must_not_claim(self) -> bool:
        return self._is_paused or not self._worker.is_within_limits() or self.has_moved()

    def has_moved(self) -> bool:
        """Return whether a link of the file's path was switched since it was last read. Then
        nothing is claimed.

        The release of before may be deleted at any time.
        """
        place = self._worker.workload.place
        if place is None or (real_path := os.path.realpath(place)) == self.read_path:
            return False
        log.info("file.moved", file=real_path)
        if self.on_moved is None:
            self.is_outdated = True  # a tick of the new release does the rest
        else:
            self.pause(True)
            self.on_moved()
        return True

    def pause(self, is_paused: bool) -> None:
        """Claim nothing for now, or claim again. Attempts continue."""
        if self._is_paused and not is_paused:
            self._worker.queues.poll_now()
        self._is_paused = is_paused
        self._worker.events.wake()
