"""The attempts of one run, from where they are recorded, and what an unfinished run waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from yamlsched import durations
from yamlsched.runs import error_text
from yamlsched.times import rfc3339

if TYPE_CHECKING:
    from yamlsched.operations.history import RunDetails
    from yamlsched.store.history import KeptOutput, RunRow, StoredRun
    from yamlsched.store.progress import StoredProgress


@dataclass(frozen=True)
class Attempt:
    """An attempt. ``status`` is failed, succeeded, cancelled, running, or released.

    One that was released has left only its output: its number is that of the next one.
    """

    number: int
    status: str
    worker: str
    started_at: datetime | None
    ended_at: datetime | None
    took: timedelta | None
    error: str = ""
    stack: str | None = None
    output: KeptOutput | None = None
    progress: StoredProgress | None = None


def attempts(details: RunDetails) -> list[Attempt]:
    """Return the attempts, oldest first."""
    reported = {(one.attempt, one.worker): one for one in details.progress}
    found = [replace(one, progress=reported.get((one.number, one.worker))) for one in _attempts(details)]
    return sorted(found, key=lambda one: (one.number, one.ended_at is None, one.ended_at))


def _attempts(details: RunDetails) -> Iterator[Attempt]:
    """Yield the failed attempts from job_failures, the latest one from the run itself, and what else has left output.

    Those that were cancelled or succeeded before a retry are in the record of the retry.
    """
    run = details.run
    outputs = {(output.attempt, output.worker): output for output in details.outputs}
    recorded: set[int] = set()
    for failure in details.failures:
        recorded.add(failure.attempt)
        yield Attempt(
            number=failure.attempt,
            status="failed",
            worker=failure.worker,
            started_at=failure.started_at,
            ended_at=failure.failed_at,
            took=_between(failure.started_at, failure.failed_at),
            error=error_text(failure.error_type, failure.error),
            stack=failure.stack,
            output=outputs.pop((failure.attempt, failure.worker), None),
        )
    for one in details.retried_attempts:
        recorded.add(one.attempt)
        yield Attempt(
            number=one.attempt,
            status=one.status,
            worker=one.worker or "",
            started_at=one.started_at,
            ended_at=one.finished_at,
            took=_between(one.started_at, one.finished_at),
            output=outputs.pop((one.attempt, one.worker or ""), None),
        )
    if run.attempts and run.attempts not in recorded and run.status in ("succeeded", "running", "cancelled"):
        yield Attempt(
            number=run.attempts,
            status=run.status,
            worker=run.worker or "",
            started_at=run.started_at,
            ended_at=run.finished_at,
            took=took(run),
            output=outputs.pop((run.attempts, run.worker or ""), None),
        )
    for kept in outputs.values():
        yield Attempt(kept.attempt, "released", kept.worker, None, kept.ended_at, None, output=kept)


def took(run: RunRow) -> timedelta | None:
    """Return how long the latest attempt took; None if that is unknown."""
    return None if run.cancelled_at_rest else _between(run.started_at, run.finished_at)


def _between(started: datetime | None, ended: datetime | None) -> timedelta | None:
    return max(ended - started, timedelta(0)) if started and ended else None


def waits_for(run: StoredRun, now: datetime) -> str:
    """Return what follows the status of an unfinished run: its worker and lease, or when it is due; else ""."""
    if run.status == "running":
        assert run.locked_until is not None
        is_over = run.locked_until < now
        return f" on {run.worker}, lease {'expired at' if is_over else 'until'} {rfc3339(run.locked_until, 'seconds')}"
    if run.status == "failed" or (run.status == "queued" and run.run_at > now):
        is_past = run.run_at <= now
        span = durations.approximate(now - run.run_at if is_past else run.run_at - now)
        return f", due {rfc3339(run.run_at, 'seconds')} ({f'{span} ago' if is_past else f'in {span}'})"
    return ""
