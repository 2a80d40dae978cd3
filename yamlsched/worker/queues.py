"""The queues that a worker serves: the claims of their runs, and the pools where these execute.

Each queue is claimed by itself, so that a full pool does not hold up the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from yamlsched.schedule.job import Mode, Queue
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.claims import Claims
from yamlsched.worker.local.pool import Pool


class Queues:
    """The queues of a worker. Attempts with a process to themselves execute in ``processes``,
    whatever their queue; ``create`` makes the pool for the coroutines of one queue.
    """

    def __init__(
        self,
        processes: Pool,
        new_claims: Callable[[str], Claims],
        create: Callable[[str, Queue, Workload], Pool],
    ) -> None:
        self._new_claims, self._create = new_claims, create
        self.processes = processes
        self._coroutines: dict[str, Pool] = {}
        self.claims: dict[str, Claims] = {}  # by queue, also of those that have left the file
        self._served: list[Claims] = []

    def __iter__(self) -> Iterator[Claims]:
        return iter(self._served)

    def in_turn(self) -> list[Claims]:
        """Return the queues that are served, each time another one first: they share processes."""
        self._served = [*self._served[1:], *self._served[:1]]
        return self._served

    @property
    def pools(self) -> list[Pool]:
        """All of them: the one of a queue that has left the file may hold attempts."""
        return [self.processes, *self._coroutines.values()]

    def pool(self, claims: Claims) -> Pool:
        """Return where the runs of a queue execute, if they need no process to themselves."""
        if claims.rules.mode is Mode.ASYNC:
            return self._coroutines[claims.queue]
        return self.processes

    def open(self, workload: Workload) -> None:
        """Serve the queues of ``workload``, and no others."""
        rules = {job.queue: job.queue_rules for job in workload.jobs.values()}
        for name, queue in sorted(rules.items()):
            if queue.mode is Mode.ASYNC and name not in self._coroutines:
                self._coroutines[name] = self._create(name, queue, workload)
            if name not in self.claims:
                self.claims[name] = self._new_claims(name)
            self.claims[name].rules = queue
        # a new list: the worker may be waiting amid the one that it has
        self._served = [self.claims[name] for name in sorted(rules)]

    def poll_now(self) -> None:
        for claims in self._served:
            claims.poll_now()

    def poll_after(self, attempts: list[Attempt]) -> None:
        """Have due runs looked for: those that ``attempts`` enqueued, and those of slots that
        waited for their end.
        """
        if any(attempt.has_turn for attempt in attempts):
            self.poll_now()
            return
        for claims in self._served:
            claims.poll_soon()

    def check(self) -> None:
        """Check everything that depends on the clock."""
        for pool in self.pools:
            pool.check()
        for claims in self._served:
            claims.check_clock()

    def submit(self, attempts: list[Attempt]) -> None:
        """Submit each attempt to its pool."""
        groups = defaultdict[Pool, list[Attempt]](list)
        for attempt in attempts:
            pool = self._coroutines[attempt.job.queue] if attempt.is_coroutine else self.processes
            groups[pool].append(attempt)
        for pool, group in groups.items():
            pool.submit(group)

    def stop(self, attempts: list[Attempt], grace: float | None = None) -> None:
        """Stop attempts as ``Pool.stop`` does."""
        for pool in self.pools:
            pool.stop(attempts, grace)
