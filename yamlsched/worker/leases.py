"""Leases: renewed by one statement for all every quarter of them, and what happens when that does not succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import psycopg

from yamlsched import log
from yamlsched.runs import End, Ending, Status
from yamlsched.store import runs as store
from yamlsched.worker import clock
from yamlsched.worker.executors.processes.child_handle import Attempt
from yamlsched.worker.sessions import Connection, Session, Unanswered

LOOK_EVERY = 0.1  # seconds
LEAST_MARGIN = 0.5  # seconds
UNRENEWED = Ending(End.RELEASED, "its lease could not be renewed")


def margin(lease: float) -> float:
    """Return how long before the end of a lease that was not renewed its handler is stopped; both in seconds."""
    return max(0.15 * lease, LEAST_MARGIN)


class Leases:
    """Keeps the leases of what ``held`` returns. ``on_lost(held, why)``: somebody else's, or cancelled;
    ``on_over(held)``: about to end, because it cannot be renewed.
    """

    def __init__(
        self,
        session: Session,
        held: Callable[[], Iterable[Attempt]],
        on_lost: Callable[[Attempt, str], None],
        on_over: Callable[[Attempt], None],
    ) -> None:
        self._session, self._held, self._on_lost, self._on_over = session, held, on_lost, on_over
        self._is_due = asyncio.Event()

    async def keep(self) -> None:
        """Renew whenever ``look`` has found something due, for ever."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            now = clock.now()
            due: dict[int, Attempt] = {}
            # by age of the claim; of two claims after a refund both are the same attempt
            for held in sorted(self._held(), key=lambda held: (held.run.attempt, held.renewed)):
                if self._must_renew(held, now):
                    if held.run.id in due:  # we have claimed it again since: the earlier claim is over
                        self._on_lost(due[held.run.id], store.LOST)
                    due[held.run.id] = held
            if due:
                await self._renew(due, now)

    def _must_renew(self, held: Attempt, now: float) -> bool:
        return now - held.renewed >= held.run.lease / 4 - LOOK_EVERY and not held.is_lost

    async def _renew(self, due: dict[int, Attempt], sent: float) -> None:
        async def ask(connection: Connection) -> tuple[set[int], dict[int, str]]:
            renewed = await store.heartbeat(connection, [held.run for held in due.values()])
            others = [held.run for held in due.values() if held.run.id not in renewed]
            return renewed, await store.ownership(connection, others) if others else {}

        try:
            within = max(LEAST_MARGIN, min(held.run.lease for held in due.values()) / 4)
            renewed, ownership = await self._session.run(ask, within)
        except (Unanswered, psycopg.OperationalError):
            return  # again in a moment; `look` sees to it that no handler outlives its lease
        for run_id in renewed:
            held = due[run_id]
            held.renewed, held.lease_ends = sent, sent + held.run.lease
        still = {id(held) for held in self._held()}
        for run_id, fate in ownership.items():
            # not renewed and not lost: another transaction has locked it, about to finish it. The next time will tell.
            if fate in (store.LOST, Status.CANCELLED) and id(due[run_id]) in still:
                self._on_lost(due[run_id], fate)

    def look(self, at_work: Iterable[Attempt]) -> None:
        """Have renewed what is due, and find what is ``at_work`` under a lease that is about to end.

        To be called several times a second while there is anything in hand.
        """
        now = clock.now()
        soonest = min((held.renewed + held.run.lease / 4 for held in self._held()), default=now)
        if now < soonest - LOOK_EVERY:
            return
        for held in list(at_work):
            if now >= held.lease_ends - margin(held.run.lease) and not held.is_lost:
                self._on_over(held)
        if any(self._must_renew(held, now) for held in self._held()):
            self._is_due.set()


def lose(held: Attempt, why: str) -> bool:
    """Note and log that the run is not ours any more; return False if that is known already.

    A heartbeat and an outcome may find it out at the same time.
    """
    if held.is_lost:
        return False
    held.is_lost, run = True, held.run
    attempt = f"{run.attempt}/{run.max_attempts}"
    log.warning("lease.lost", job=run.job_type, run=run.id, key=run.key, attempt=attempt, why=why)
    return True
