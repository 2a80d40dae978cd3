"""When a worker claims, how much, and to whom it hands what it gets."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from yamlsched import log
from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import STOPPED, Attempt, wait
from yamlsched.worker.claims import POLL_INTERVAL_SECONDS, Claims

if TYPE_CHECKING:
    from yamlsched.worker.worker import Worker

MAX_PAYLOAD_CHARS = 1 << 24  # of runs that are claimed ahead
ONE_SESSION_AFTER_SECONDS = 5.0  # without an attempt: it closes the others
NOT_HERE = AttemptEnd(
    EndKind.RELEASED,
    "its job is not in this queue of this host's file, or its entry there is not valid",
    delay=timedelta(seconds=10),
)
"""The end of an attempt that is left to other hosts: the file in use is another one."""


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
        for claims in worker.queues.in_turn():
            limit = _room(worker, claims)
            if limit > 0 or claims.lost:
                await claims.release_lost_claims()
                if limit > 0:
                    await _claim(worker, claims, limit)
                worker.events.wake()
            may_wait = may_wait and (limit <= 0 or claims.is_exhausted)
        worker.is_claiming = False
        if may_wait:
            if worker.is_continuous:
                if worker.is_idle_for(ONE_SESSION_AFTER_SECONDS):
                    await worker.sessions.close_unneeded()
                worker.sessions.claim.watch()
            idle = (claims.idle_seconds for claims in worker.queues)
            await wait(worker.may_claim, min(idle, default=POLL_INTERVAL_SECONDS))
            worker.sessions.claim.unwatch()
            for claims in worker.queues:
                claims.check_clock()


async def _report(worker: Worker) -> None:
    """Report that this worker is there. It leaves if another process has its id now."""
    if worker.registration is None:
        return
    queues = [claims.queue for claims in worker.queues]
    is_leaving = not worker.is_within_limits()
    is_known = await worker.registration.report_if_due(worker.sessions.claim, queues, is_leaving)
    if not is_known and worker.stopped_at is None:
        log.warning("worker.replaced", worker=worker.registration.name.id)
        worker.stop()


def _room(worker: Worker, claims: Claims) -> int:
    """Return how many more runs to claim; they can start soon."""
    if claims.is_exhausted or worker.must_not_claim() or not worker.outcomes.has_room():
        return 0
    capacity = worker.queues.pool(claims).capacity()
    if not capacity.parallel:
        # other ticks of this host have all permits, and do what is due
        claims.is_exhausted, claims.look_at = True, clock.now() + POLL_INTERVAL_SECONDS
        return 0
    payloads = MAX_PAYLOAD_CHARS // worker.payload_chars
    total = min(capacity.total, max(capacity.parallel, payloads))
    room = total - capacity.held
    if 2 * room < total - capacity.parallel:
        return 0  # there is enough to do: a claim of a few runs costs more than it gains
    if worker.limits.max_runs is not None:
        room = min(room, worker.limits.max_runs - worker.claimed_count)
    if (concurrency := claims.rules.concurrency) is None:
        return room
    executing = sum(
        held.took is None and held.job.queue == claims.queue for held in worker.attempts
    )
    return min(room, concurrency - executing)


async def _claim(worker: Worker, claims: Claims, limit: int) -> None:
    scope, sent_at = worker.workload.scope, clock.now()
    left = worker.seconds_left()
    skipped = [job for job, timeout in scope.timeouts if timeout > left]
    runs = await claims.claim(limit, scope, skipped)
    if runs and not await worker.sessions.open():
        claims.lose(runs)
    elif runs:
        worker.sessions.claim.note_runs()
        worker.report.note_claimed(runs)
        worker.claimed_count += len(runs)
        worker.payload_chars = max(len(run.payload) for run in runs)
        _submit(worker, claims.queue, runs, sent_at)
    worker.release_idle_capacity()
    await asyncio.sleep(0)  # what was claimed is handed out before the next claim is sent


def _submit(worker: Worker, queue: str, runs: list[ClaimedRun], sent_at: float) -> None:
    """Hand over ``runs``, which were claimed from ``queue``. Those that this host's file does not
    have there are released.
    """
    jobs, executable = worker.workload.jobs, []
    for run in runs:
        job = jobs.get(run.job_type)
        attempt = Attempt(run, job or Job(run.job_type), sent_at + run.lease, sent_at)
        worker.attempts.add(attempt)
        is_here = job is not None and job.queue == queue
        if is_here and worker.stopped_at is None:
            executable.append(attempt)
        else:
            end = STOPPED if is_here else NOT_HERE
            worker.outcomes.add(attempt, end._replace(has_begun=False))
    worker.busy_at = clock.now()
    if worker.registration is not None:
        worker.registration.note_started(queue, len(executable))
    worker.report.note_starts(executable)
    worker.queues.submit(executable)
