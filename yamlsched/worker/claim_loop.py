"""When a worker claims, how much, and to whom it hands what it gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from yamlsched import log
from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.admission import MOVED, STOPPED, no_process, refusal
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.claims import POLL_INTERVAL_SECONDS
from yamlsched.worker.executor import wait
from yamlsched.worker.queues import ServedQueue

if TYPE_CHECKING:
    from yamlsched.worker.worker import Worker

ONE_SESSION_AFTER_SECONDS = 5.0  # without an attempt: it closes the others


async def claim_continually(worker: Worker) -> None:
    """Claim whenever there is room for more, until cancelled."""
    while True:
        worker.may_claim.clear()
        # the upkeep included: it writes outcomes, which are to be reported
        may_wait = worker.is_claiming = True
        await _report(worker)
        if not worker.must_not_claim() and await worker.upkeep.run_if_due():
            worker.queues.poll_now()
            worker.events.wake()
        for queue in worker.queues.in_turn():
            limit = _room(worker, queue)
            if limit > 0 or queue.claims.has_lost_claims:
                await queue.claims.release_lost_claims()
                if limit > 0 and await _is_ready(worker, queue) and not worker.must_not_claim():
                    await _claim(worker, queue, limit)
                worker.events.wake()
            may_wait = may_wait and (limit <= 0 or queue.claims.is_exhausted)
        worker.is_claiming = False
        if may_wait:
            if worker.is_continuous:
                if worker.is_idle_for(ONE_SESSION_AFTER_SECONDS):
                    await worker.sessions.close_unneeded()
                worker.sessions.claim.watch()
            idle = (queue.claims.idle_seconds for queue in worker.queues)
            await wait(worker.may_claim, min(idle, default=POLL_INTERVAL_SECONDS))
            worker.sessions.claim.unwatch()
            worker.queues.check_clock()


async def _report(worker: Worker) -> None:
    """Report that this worker is there. It leaves if another process has its id now."""
    if worker.registration is None:
        return
    queues = [queue.name for queue in worker.queues]
    is_leaving = not worker.is_within_limits()
    is_known = await worker.registration.report_if_due(worker.sessions.claim, queues, is_leaving)
    if not is_known and worker.stopped_at is None:
        log.warning("worker.replaced", worker=worker.registration.name.id)
        worker.stop()


async def _is_ready(worker: Worker, queue: ServedQueue) -> bool:
    """Open the sessions that a claim needs. An idle worker first looks for what is due, with
    the one session that it has.
    """
    if (
        worker.is_continuous
        and not worker.sessions.is_open
        and not await queue.claims.look(worker.workload.scope)
    ):
        return False
    return await worker.sessions.open()


def _room(worker: Worker, queue: ServedQueue) -> int:
    """Return how many more runs to claim; they can start soon."""
    if queue.claims.is_exhausted or worker.must_not_claim() or not worker.outcomes.has_room():
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


async def _claim(worker: Worker, queue: ServedQueue, limit: int) -> None:
    scope = worker.workload.scope
    skipped = worker.budget.too_long(scope) if worker.is_continuous else ()
    answer = await queue.claims.claim(limit, scope, skipped)
    if answer is None:
        return
    claim, sent_at = answer
    worker.report.note_claimed(claim.runs)
    if claim.runs:
        worker.budget.note_claimed(claim.runs)
        _submit(worker, queue, claim.runs, sent_at, scope)
        worker.has_work.set()
    worker.release_idle_capacity()
    worker.events.wake()
    await asyncio.sleep(0)  # what was claimed is handed out before the next claim is sent


def _submit(
    worker: Worker, queue: ServedQueue, runs: list[ClaimedRun], sent_at: float, scope: ClaimScope
) -> None:
    """Hand over ``runs``, which were claimed from ``queue`` in ``scope``: the file may have
    been read again.
    """
    jobs, is_outdated = worker.workload.jobs, scope is not worker.workload.scope
    released = STOPPED if worker.stopped_at is not None else MOVED if worker.has_moved() else None
    attempts = [
        Attempt(run, jobs.get(run.job_type) or Job(run.job_type), sent_at + run.lease, sent_at)
        for run in runs
    ]
    executable, room, parallel = [], 0, 0
    is_of_coroutines = queue.executor is not worker.queues.processes
    if is_of_coroutines and not all(attempt.is_coroutine for attempt in attempts):
        # the claim counted the room for coroutines, and these need a process to themselves
        parallel, total, held = worker.queues.processes.capacity()
        room = total - held
    worker.leases.add(attempts)
    for attempt in attempts:
        end = released or refusal(attempt, queue.name, jobs, is_outdated)
        if end is None and is_of_coroutines and not attempt.is_coroutine:
            room -= 1
            end = no_process(-1 - room, parallel) if room < 0 else None
        if end is None:
            executable.append(attempt)
        else:
            worker.outcomes.add(attempt, end._replace(has_begun=False))
    worker.busy_at = clock.now()
    if worker.registration is not None:
        worker.registration.note_started(queue.name, len(executable))
    worker.report.note_starts(executable)
    worker.queues.submit(executable)
