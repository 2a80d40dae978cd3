"""What came of the attempts: counted, and said in the log."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from yamlsched import durations, log
from yamlsched.runs import LOST_WORKER, ClaimedRun, End, Ending, Outcome, Status, one_line

if TYPE_CHECKING:
    from yamlsched.store.runs import ClaimResult
    from yamlsched.worker.outcomes import Success


class RunReport:
    """``states`` counts the attempts by the state in which they left their run; ``jobs`` says of each job what its
    heartbeat says: succeeded, or dead if any run was. Runs that report a dead one (on_dead) say nothing of their job.
    """

    def __init__(self) -> None:
        self.states: Counter[Status] = Counter()
        self.jobs: dict[str, Status] = {}

    @property
    def has_dead(self) -> bool:
        return self.states[Status.DEAD] > 0

    def take_jobs(self) -> dict[str, Status]:
        """Return ``jobs``, and begin them anew."""
        taken, self.jobs = self.jobs, {}
        return taken

    def restore_jobs(self, taken: dict[str, Status]) -> None:
        """Undo ``take_jobs``, whatever has come in between."""
        for job, status in taken.items():
            self._note_job(job, status)

    def note_claim(self, claim: ClaimResult) -> None:
        """Say what a claim took, and from whom."""
        for run in claim.lost:
            log.warning("attempt.lost", **_names(run), attempt=run.attempt, worker=run.locked_by)
        lost = {run.id for run in claim.lost}
        for run in claim.dead:
            self._count(run, Status.DEAD)
            error = LOST_WORKER["lost_error"] if run.id in lost else "no attempts are left: the run was edited by hand"
            log.error("run.dead", **_names(run), attempt=_of(run), error=error)
        if log.is_enabled("debug"):
            for run in claim.runs:
                log.debug("run.claimed", **_names(run), attempt=_of(run))

    def note_successes(self, ends: list[Success]) -> None:
        """Count and say successes that stand in the database."""
        self.states[Status.SUCCEEDED] += len(ends)
        for job in {held.run.job_type for held, _ in ends if not held.run.is_on_dead_call}:
            self._note_job(job, Status.SUCCEEDED)
        if log.is_enabled("info"):
            for held, took in ends:
                _say_succeeded(held.run, took)

    def note_end(self, run: ClaimedRun, ending: Ending, outcome: Outcome, run_at: datetime | None) -> None:
        """Count and say an outcome that stands in the database; ``run_at`` is when the run is due again."""
        self._count(run, outcome.status)
        match outcome.status:
            case Status.SUCCEEDED:
                _say_succeeded(run, ending.took)
            case Status.FAILED:
                log.warning("attempt.failed", **_names(run), attempt=_of(run), next=run_at, error=outcome.error)
            case Status.DEAD:
                log.error("run.dead", **_names(run), attempt=_of(run), error=outcome.error)
            case _ if ending.end is End.SNOOZED:
                log.info("attempt.snoozed", **_names(run), attempt=_of(run), next=run_at)
            case _ if ending.end is End.SESSION_LOST:
                why = f"its database session broke ({ending.error_type})"
                log.warning("attempt.released", **_names(run), attempt=_of(run), why=one_line(why))
            case _:
                log.info("run.given_back", **_names(run), attempt=_of(run), why=ending.error)

    def _count(self, run: ClaimedRun, status: Status) -> None:
        self.states[status] += 1
        if not run.is_on_dead_call:
            self._note_job(run.job_type, status)

    def _note_job(self, job: str, status: Status) -> None:
        if status is Status.DEAD or (status is Status.SUCCEEDED and job not in self.jobs):
            self.jobs[job] = status


def _say_succeeded(run: ClaimedRun, took: float) -> None:
    seconds = timedelta(seconds=round(took, 3))
    log.info("attempt.succeeded", **_names(run), attempt=_of(run), took=durations.show(seconds))


def _names(run: ClaimedRun) -> dict[str, Any]:
    call = {"call": "on_dead"} if run.is_on_dead_call else {}
    return {"job": run.job_type, **call, "run": run.id, "key": run.key}


def _of(run: ClaimedRun) -> str:
    return f"{run.attempt}/{run.max_attempts}"
