"""The report of a worker: its outcomes, counted and logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from yamlsched import log
from yamlsched.runs.lifecycle import (
    LOST_WORKER,
    AttemptEnd,
    ClaimedRun,
    EndKind,
    Outcome,
    Status,
    error_text,
)
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.claiming import ReclaimResult


class RunListener(Protocol):
    """Is notified when an attempt is handed to its executor, and when its outcome is in the
    database.

    ``status`` is the new state of the run, and ``seconds`` how long the attempt executed, if that
    is known.
    """

    def note_start(self, run: ClaimedRun) -> None: ...

    def note_end(
        self, run: ClaimedRun, status: Status, seconds: float | None, error_type: str | None
    ) -> None: ...


class RunReport:
    """``states`` counts attempts by the state in which they left their run. Each of ``listeners``
    costs time for each run: add it only if it is needed.
    """

    def __init__(self) -> None:
        self.states: Counter[Status] = Counter()
        self.listeners: list[RunListener] = []

    @property
    def dead_count(self) -> int:
        """How many runs have died."""
        return self.states[Status.DEAD]

    def note_starts(self, attempts: Sequence[Attempt]) -> None:
        """Note that ``attempts`` are handed to their executors."""
        for listener in self.listeners:
            for attempt in attempts:
                listener.note_start(attempt.run)

    def note_reclaimed(self, reclaimed: ReclaimResult) -> None:
        """Log what was taken from which workers, and what has died."""
        for run in reclaimed.lost:
            log.warning("attempt.lost", **_names(run), attempt=run.attempt, worker=run.locked_by)
        for run in reclaimed.dead:
            self._count(run, Status.DEAD, None, LOST_WORKER["lost_type"])
            error = LOST_WORKER["lost_error"]
            log.error("run.dead", **_names(run), attempt=_number(run), error=error)

    def note_claimed(self, runs: Iterable[ClaimedRun]) -> None:
        """Log what a claim took."""
        if log.is_enabled("debug"):
            for run in runs:
                log.debug("run.claimed", **_names(run), attempt=_number(run))

    def note_successes(self, attempts: list[Attempt]) -> None:
        """Count and log successes that are in the database."""
        self.states[Status.SUCCEEDED] += len(attempts)
        for listener in self.listeners:
            for attempt in attempts:
                listener.note_end(attempt.run, Status.SUCCEEDED, attempt.took, None)
        if log.is_enabled("info"):
            for attempt in attempts:
                _log_success(attempt)

    def note_outcome(
        self, attempt: Attempt, end: AttemptEnd, outcome: Outcome, run_at: datetime | None
    ) -> None:
        """Count and log an outcome that is in the database; ``run_at`` is when the run is due
        again.
        """
        run = attempt.run
        names = {**_names(run), "attempt": _number(run)}
        self._count(run, outcome.status, attempt.took, outcome.error_type)
        match outcome.status:
            case Status.SUCCEEDED:
                _log_success(attempt)
            case Status.FAILED:
                log.warning(
                    "attempt.failed",
                    **names,
                    next=run_at,
                    error=error_text(outcome.error_type, outcome.error),
                )
            case Status.DEAD:
                log.error("run.dead", **names, error=error_text(outcome.error_type, outcome.error))
            case _ if end.kind is EndKind.SNOOZED:
                log.info("attempt.snoozed", **names, next=run_at)
            case _:
                log.info("run.released", **names, why=end.error)

    def _count(
        self, run: ClaimedRun, status: Status, seconds: float | None, error_type: str | None
    ) -> None:
        self.states[status] += 1
        for listener in self.listeners:
            listener.note_end(run, status, seconds, error_type)


def _log_success(attempt: Attempt) -> None:
    run, took = attempt.run, timedelta(seconds=round(attempt.took or 0.0, 3))
    log.info("attempt.succeeded", **_names(run), attempt=_number(run), took=took)


def _names(run: ClaimedRun) -> dict[str, Any]:
    return {"job": run.job_type, "run": run.id, "key": run.key}


def _number(run: ClaimedRun) -> log.NumberOf:
    return log.NumberOf(run.attempt, run.max_attempts)
