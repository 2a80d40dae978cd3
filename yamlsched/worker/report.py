"""The report of a worker: its outcomes, logged and passed to plugins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from yamlsched import log
from yamlsched.runs.lifecycle import (
    LOST_WORKER,
    ClaimedRun,
    EndKind,
    Status,
    error_text,
)
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.claiming import ReclaimResult
from yamlsched.worker.outcomes import PendingOutcome


class RunReport:
    """Each of ``listeners`` costs time for each run: add it only if it is needed.

    They are notified by ``note_start`` when an attempt is handed to its pool, and by ``note_end``
    when its outcome is in the database, with the new status, the seconds that it executed, if that
    is known, and the type of its error.
    """

    def __init__(self) -> None:
        self.dead_count = 0  # runs that have died
        self.listeners: list[Any] = []

    def note_starts(self, attempts: Sequence[Attempt]) -> None:
        """Note that ``attempts`` are handed to their pools."""
        for listener in self.listeners:
            for attempt in attempts:
                listener.note_start(attempt.run)

    def note_reclaimed(self, reclaimed: ReclaimResult) -> None:
        """Log what was taken from which workers, and what has died."""
        for run in reclaimed.lost:
            names = _names(run) | {"attempt": run.attempt}
            log.warning("attempt.lost", **names, worker=run.locked_by)
        for run in reclaimed.dead:
            self._note_end(run, Status.DEAD, None, LOST_WORKER["lost_type"])
            log.error("run.dead", **_names(run), error=f"lost its worker {run.locked_by}")

    def note_claimed(self, runs: Iterable[ClaimedRun]) -> None:
        """Log what a claim took."""
        if log.is_enabled("debug"):
            for run in runs:
                log.debug("run.claimed", **_names(run))

    def note_successes(self, attempts: list[Attempt]) -> None:
        """Log successes that are in the database."""
        if self.listeners:
            for attempt in attempts:
                self._note_end(attempt.run, Status.SUCCEEDED, attempt.took)
        if log.is_enabled("info"):
            for attempt in attempts:
                took = timedelta(seconds=round(attempt.took or 0.0, 3))
                log.info("attempt.succeeded", **_names(attempt.run), took=took)

    def note_outcome(self, pending: PendingOutcome) -> None:
        """Log an outcome that is in the database."""
        attempt, outcome, names = pending.attempt, pending.outcome, _names(pending.attempt.run)
        if outcome.status is Status.SUCCEEDED:
            self.note_successes([attempt])
            return
        self._note_end(attempt.run, outcome.status, attempt.took, outcome.error_type)
        error = error_text(outcome.error_type, outcome.error)
        match outcome.status:
            case Status.FAILED:
                log.warning("attempt.failed", **names, next=pending.run_at, error=error)
            case Status.DEAD:
                log.error("run.dead", **names, error=error)
            case _ if pending.end.kind is EndKind.SNOOZED:
                log.info("attempt.snoozed", **names, next=pending.run_at)
            case _:
                log.info("run.released", **names, why=pending.end.error)

    def _note_end(
        self, run: ClaimedRun, status: Status, seconds: float | None, error_type: str | None = None
    ) -> None:
        self.dead_count += status is Status.DEAD
        for listener in self.listeners:
            listener.note_end(run, status, seconds, error_type)


def _names(run: ClaimedRun) -> dict[str, Any]:
    number = log.NumberOf(run.attempt, run.max_attempts)
    return {"job": run.job_type, "run": run.id, "key": run.key, "attempt": number}
