"""The queues that a worker serves: the claims of their runs, and the executors where these execute.

Each queue is claimed by itself, so that a full executor does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from yamlsched.runs.lifecycle import Outcome
from yamlsched.schedule.job import Mode, Queue
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.claims import Claims
from yamlsched.worker.executor import Executor


@dataclass(slots=True, eq=False)
class ServedQueue:
    """A queue by its ``name``, with the ``rules`` of the file."""

    name: str
    rules: Queue
    executor: Executor
    claims: Claims


class Queues:
    """The queues of a worker. Attempts with a process to themselves execute in ``processes``,
    whatever their queue; ``create`` makes an executor for the coroutines of one queue.
    """

    def __init__(
        self,
        processes: Executor,
        new_claims: Callable[[str], Claims],
        create: Callable[[str, Queue], Executor],
    ) -> None:
        self._new_claims, self._create = new_claims, create
        self.processes = processes
        self._coroutines: dict[str, Executor] = {}
        self._claims: dict[str, Claims] = {}
        self._served: list[ServedQueue] = []

    def __iter__(self) -> Iterator[ServedQueue]:
        return iter(self._served)

    def in_turn(self) -> list[ServedQueue]:
        """Return the queues that are served, each time another one first: they share processes."""
        self._served = [*self._served[1:], *self._served[:1]]
        return self._served

    @property
    def executors(self) -> list[Executor]:
        """All of them: the one of a queue that has left the file may hold attempts."""
        return [self.processes, *self._coroutines.values()]

    def note_outcome(self, attempt: Attempt, outcome: Outcome, is_released: bool) -> None:
        """Note what ``attempt`` has left, see ``Claims.note_outcome``."""
        if claims := self._claims.get(attempt.queue):
            claims.note_outcome(outcome, is_released)

    def open(self, workload: Workload) -> None:
        """Serve the queues of ``workload``, and no others."""
        rules = {job.queue: job.queue_rules for job in workload.jobs.values()}
        served = []
        for name, queue in sorted(rules.items()):
            executor = self.processes
            if queue.mode is Mode.ASYNC:
                if name not in self._coroutines:
                    self._coroutines[name] = self._create(name, queue)
                executor = self._coroutines[name]
            if name not in self._claims:
                self._claims[name] = self._new_claims(name)
            served.append(ServedQueue(name, queue, executor, self._claims[name]))
        self._served = served  # a new list: the worker may be waiting amid the one that it has

    def poll_now(self) -> None:
        for queue in self._served:
            queue.claims.poll_now()

    def poll_soon(self) -> None:
        for queue in self._served:
            queue.claims.poll_soon()

    def poll_after(self, attempts: list[Attempt]) -> None:
        """Have due runs looked for: those that ``attempts`` enqueued, and those of slots that
        waited for their end.
        """
        if any(attempt.has_turn for attempt in attempts):
            self.poll_now()
        else:
            self.poll_soon()

    def check(self) -> None:
        """Check everything that depends on the clock."""
        for executor in self.executors:
            executor.check()
        self.check_clock()

    def check_clock(self) -> None:
        """Have due runs looked for if it is time to."""
        for queue in self._served:
            queue.claims.check_clock()

    def reload(self, workload: Workload) -> None:
        """Import handlers again for attempts that start from now on."""
        for executor in self.executors:
            executor.reload(workload)

    def release_idle_capacity(self, is_over: bool) -> None:
        """Release what waits for more runs, where none are due, or everywhere if the worker's time
        ``is_over``.
        """
        for executor in self.executors:
            claims = [queue.claims for queue in self._served if queue.executor is executor]
            if is_over or all(each.is_exhausted for each in claims):
                executor.release_idle_capacity()

    def release_unstarted(self) -> None:
        for executor in self.executors:
            executor.release_unstarted()

    def submit(self, attempts: list[Attempt]) -> None:
        """Submit each attempt to its executor."""
        for executor, group in self._grouped(attempts):
            executor.submit(group)

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Stop attempts as ``Executor.stop`` does, each on its executor."""
        for executor, group in self._grouped(list(attempts)):
            executor.stop(group, grace)

    def _grouped(self, attempts: list[Attempt]) -> Iterator[tuple[Executor, list[Attempt]]]:
        alone = [attempt for attempt in attempts if not attempt.is_coroutine]
        if alone:
            yield self.processes, alone
        for name, executor in self._coroutines.items():
            of_queue = [each for each in attempts if each.is_coroutine and each.queue == name]
            if of_queue:
                yield executor, of_queue
