"""The report of a worker: its outcomes, counted and logged."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from yamlsched import durations, log
from yamlsched.runs import LOST_WORKER, AttemptEnd, ClaimedRun, EndKind, Outcome, Status, error_text, one_line

if TYPE_CHECKING:
    from yamlsched.store.runs import ClaimResult
    from yamlsched.worker.attempt import Attempt


class RunReport:
    """``states`` counts attempts by the state in which they left their run. ``jobs`` has what the heartbeat of each job
    reports: succeeded, or dead if any run was. Calls of ``on_dead`` do not count for their job.
    """

    def __init__(self) -> None:
        self.states: Counter[Status] = Counter()
        self.jobs: dict[str, Status] = {}

    @property
    def has_dead(self) -> bool:
        return self.states[Status.DEAD] > 0

    def take_jobs(self) -> dict[str, Status]:
        """Return ``jobs``, and clear it."""
        taken, self.jobs = self.jobs, {}
        return taken

    def restore_jobs(self, taken: dict[str, Status]) -> None:
        """Undo ``take_jobs``; what was noted since is kept."""
        for job, status in taken.items():
            self._note_job(job, status)

    def note_claim(self, claim: ClaimResult) -> None:
        """Log what a claim took, and from which workers."""
        for run in claim.lost:
            log.warning("attempt.lost", **_names(run), attempt=run.attempt, worker=run.locked_by)
        lost = {run.id for run in claim.lost}
        for run in claim.dead:
            self._count(run, Status.DEAD)
            error = LOST_WORKER["lost_error"] if run.id in lost else "no attempts are left: the run was edited by hand"
            log.error("run.dead", **_names(run), attempt=_number(run), error=error)
        if log.is_enabled("debug"):
            for run in claim.runs:
                log.debug("run.claimed", **_names(run), attempt=_number(run))

    def note_successes(self, attempts: list[Attempt]) -> None:
        """Count and log successes that are in the database."""
        self.states[Status.SUCCEEDED] += len(attempts)
        runs = [attempt.run for attempt in attempts]
        for job in {run.job_type for run in runs if not run.key or not run.is_on_dead_call}:
            self._note_job(job, Status.SUCCEEDED)
        if log.is_enabled("info"):
            for attempt in attempts:
                _log_success(attempt)

    def note_outcome(self, attempt: Attempt, end: AttemptEnd, outcome: Outcome, run_at: datetime | None) -> None:
        """Count and log an outcome that is in the database; ``run_at`` is when the run is due again."""
        run = attempt.run
        names = {**_names(run), "attempt": _number(run)}
        self._count(run, outcome.status)
        match outcome.status:
            case Status.SUCCEEDED:
                _log_success(attempt)
            case Status.FAILED:
                log.warning("attempt.failed", **names, next=run_at, error=error_text(outcome.error_type, outcome.error))
            case Status.DEAD:
                log.error("run.dead", **names, error=error_text(outcome.error_type, outcome.error))
            case _ if end.kind is EndKind.SNOOZED:
                log.info("attempt.snoozed", **names, next=run_at)
            case _ if end.kind is EndKind.SESSION_LOST:
                log.warning("attempt.released", **names, why=one_line(f"its database session broke ({end.error_type})"))
            case _:
                log.info("run.given_back", **names, why=end.error)

    def _count(self, run: ClaimedRun, status: Status) -> None:
        self.states[status] += 1
        if not run.is_on_dead_call:
            self._note_job(run.job_type, status)

    def _note_job(self, job: str, status: Status) -> None:
        if status is Status.DEAD or (status is Status.SUCCEEDED and job not in self.jobs):
            self.jobs[job] = status


def _log_success(attempt: Attempt) -> None:
    run, took = attempt.run, timedelta(seconds=round(attempt.took or 0.0, 3))
    log.info("attempt.succeeded", **_names(run), attempt=_number(run), took=durations.show(took))


def _names(run: ClaimedRun) -> dict[str, Any]:
    call = {"call": "on_dead"} if run.is_on_dead_call else {}
    return {"job": run.job_type, **call, "run": run.id, "key": run.key}


def _number(run: ClaimedRun) -> str:
    return f"{run.attempt}/{run.max_attempts}"
