"""Lanes: each executor with what is claimed for it, so that a full executor does not hold up the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from yamlsched.runs.lifecycle import LOCAL
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.claims import Claims
from yamlsched.worker.executor import Executor


@dataclass(slots=True, eq=False)
class Lane:
    """The executor ``name`` and the claims of runs for it."""

    name: str
    executor: Executor
    claims: Claims


class Lanes:
    """The lanes of a worker by executor; ``local`` is always there. ``create`` makes those of other
    executors.
    """

    def __init__(
        self,
        local: Executor,
        new_claims: Callable[[str], Claims],
        create: Callable[[str], Executor],
    ) -> None:
        self._new_claims, self._create = new_claims, create
        self.local = Lane(LOCAL, local, new_claims(LOCAL))
        self._by_name = {LOCAL: self.local}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_name.values())

    def of(self, attempt: Attempt) -> Lane:
        """Return the lane of ``attempt``."""
        return self._by_name.get(attempt.lane, self.local)

    def open(self, workload: Workload) -> None:
        """Add lanes for the executors of ``workload`` that have none. One that has left the file
        may hold attempts.
        """
        names = {job.lane for job in workload.jobs.values()} - self._by_name.keys()
        added = {
            name: Lane(name, self._create(name), self._new_claims(name)) for name in sorted(names)
        }
        self._by_name = {
            **self._by_name,
            **added,
        }  # a new one: the worker may be waiting amid the lanes that it has

    def poll_now(self) -> None:
        for lane in self._by_name.values():
            lane.claims.poll_now()

    def poll_soon(self) -> None:
        for lane in self._by_name.values():
            lane.claims.poll_soon()

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
        for lane in self._by_name.values():
            lane.executor.check()
            lane.claims.check_clock()

    def reload(self, workload: Workload) -> None:
        """Import handlers again for attempts that start from now on."""
        for lane in self._by_name.values():
            lane.executor.reload(workload)

    def release_idle_capacity(self, is_over: bool) -> None:
        """Release what waits for more runs, where none are due, or everywhere if the worker's time
        ``is_over``.
        """
        for lane in self._by_name.values():
            if is_over or lane.claims.is_exhausted:
                lane.executor.release_idle_capacity()

    def release_unstarted(self) -> None:
        for lane in self._by_name.values():
            lane.executor.release_unstarted()

    def submit(self, attempts: list[Attempt]) -> None:
        """Submit each attempt to the executor of its job."""
        for lane, group in self._grouped(attempts):
            lane.executor.submit(group)

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Stop attempts as ``Executor.stop`` does, each on its executor."""
        for lane, group in self._grouped(list(attempts)):
            lane.executor.stop(group, grace)

    def _grouped(self, attempts: list[Attempt]) -> Iterator[tuple[Lane, list[Attempt]]]:
        if len(self._by_name) == 1:
            yield self.local, attempts
            return
        for lane in self._by_name.values():
            if group := [attempt for attempt in attempts if attempt.lane == lane.name]:
                yield lane, group
