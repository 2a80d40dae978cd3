"""How much a worker may claim, and which of the runs that it has claimed it does not execute, and
why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from datetime import timedelta

from yamlsched.runs.lifecycle import AttemptEnd, ClaimedRun, EndKind
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt, WorkerLimits
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.executor import Capacity

MAX_PAYLOAD_CHARS = 1 << 24
"""Of runs that have not ended, estimated by the size of those claimed before."""
NO_PROCESS_SECONDS = 0.25
"""In which a process is expected to become free."""
MAX_WAIT_SECONDS = 8.0
"""For a process: a tick does not wait for what is due in ten seconds, and leaves it to the next."""
STOPPED = AttemptEnd(EndKind.RELEASED, "stopped by a shutdown")
NOT_CLAIMABLE = AttemptEnd(
    EndKind.RELEASED, "its job has left this host's file, or its entry there is not valid"
)
IN_ANOTHER_QUEUE = AttemptEnd(
    EndKind.RELEASED,
    "its job has another queue in this host's file than in the file in use",
    delay=timedelta(seconds=10),
)
NO_PROCESS = AttemptEnd(EndKind.RELEASED, "no process is free for it")
NOT_STARTED = AttemptEnd(EndKind.RELEASED, "no executor has room for it")
MOVED = AttemptEnd(EndKind.RELEASED, "the path of the file leads to another release now")


def no_process(place: int, processes: int) -> AttemptEnd:
    """Return the end of an attempt that needs a process to itself and was claimed where coroutines
    have room, as the one at ``place`` (from 0) in the line for ``processes``.

    Those of a line are due one after another: together, they would be claimed and released in vain.
    """
    wait = min(MAX_WAIT_SECONDS, NO_PROCESS_SECONDS * (4 + place // max(1, processes)))
    return NO_PROCESS._replace(delay=timedelta(seconds=wait))


class ClaimBudget:
    """What a worker has claimed, and what its limits leave. Time counts from when it is created."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits, self._started_at = limits, clock.now()
        self._claimed_count = 0
        self._typical_payload_chars = 0.0

    @property
    def is_left(self) -> bool:
        """Whether neither the time nor the number of runs is used up."""
        max_runs = self._limits.max_runs
        return self._seconds_left() > 0 and (max_runs is None or self._claimed_count < max_runs)

    def _seconds_left(self) -> float:
        max_time = self._limits.max_time
        if max_time is None:
            return math.inf
        return self._started_at + max_time.total_seconds() - clock.now()

    def too_long(self, scope: ClaimScope) -> Collection[int]:
        """Return the jobs whose ``timeout`` is longer than the time that is left."""
        left = self._seconds_left()
        return [job for job, timeout in scope.timeouts if timeout > left]

    def note_claimed(self, runs: Sequence[ClaimedRun]) -> None:
        """Count ``runs``, of which there is one at least."""
        self._claimed_count += len(runs)
        chars = sum([len(run.payload) for run in runs]) / len(runs)
        self._typical_payload_chars = max(chars, (self._typical_payload_chars + chars) / 2)

    def room(self, capacity: Capacity) -> int:
        """Return how many more runs to claim for an executor with this ``capacity``."""
        payloads = int(MAX_PAYLOAD_CHARS / max(1.0, self._typical_payload_chars))
        total = min(capacity.total, max(capacity.parallel, payloads))
        room = total - capacity.held
        if 2 * room < total - capacity.parallel:
            return 0  # there is enough to do: a claim of a few runs costs more than it gains
        max_runs = self._limits.max_runs
        return room if max_runs is None else min(room, max_runs - self._claimed_count)


def refusal(
    attempt: Attempt, queue: str, jobs: Container[str], is_outdated: bool
) -> AttemptEnd | None:
    """Return how an attempt ends that was claimed from ``queue`` and may not start, or None.

    ``jobs`` are those of this host's file; ``is_outdated``: the file was read again after the claim
    was sent. What this host's file has in another queue than the one in use is left to other
    hosts.
    """
    run = attempt.run
    if run.job_type not in jobs:
        return NOT_CLAIMABLE if is_outdated else _of_other_job(run)
    return IN_ANOTHER_QUEUE if attempt.queue != queue else None


def _of_other_job(run: ClaimedRun) -> AttemptEnd:
    """Return the end of an attempt that was claimed by the id of its definition, and whose own job
    is unknown here.

    It is not released: it would be claimed again at once, forever.
    """
    why = (
        f'its definition is that of another job than "{run.job_type}": the row was changed, and not'
        " by yamlsched"
    )
    return AttemptEnd(EndKind.RAISED, why, "WrongDefinition")
