"""The health of a namespace as Prometheus metrics, read from the database: one host can report for all."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import psycopg

from yamlsched.errors import EnvironmentFailed
from yamlsched.operations.health import drift, in_force
from yamlsched.runs import LOST_WORKER
from yamlsched.store import failures, health
from yamlsched.store.failures import FailedAttempts
from yamlsched.store.health import EndedRuns, Health, JobHealth
from yamlsched.terminal import escape_control

DURATION_BOUNDS_SECONDS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400)
MAX_ERROR_TYPES = 5
"""Types of error of one job that are counted by themselves: the most frequent, and LostWorker. The rest is other."""
MAX_FAILED_OF_JOB = 1_000
"""Failed runs of a job whose attempts are counted."""
MAX_LABEL_CHARS = 200
LOST_WORKER_TYPE = LOST_WORKER["lost_type"]
BUCKETS = (*map(str, DURATION_BOUNDS_SECONDS), "+Inf")
Value = float | datetime | None
"""An instant is written as seconds since 1970; None is not written."""

HELP = {
    "runs": "Unfinished runs by status, and dead runs that were not pruned.",
    "effects_in_doubt": "Effects of unknown result, by what they wait for: a person, or the run's retry.",
    "oldest_due_seconds": "Time that the oldest due run has waited for a worker; 0 if none waits.",
    "stuck_runs": "Runs past their lease or their timeout.",
    "tick_age_seconds": "Time since a tick last presented a schedule.",
    "other_files": "Versions of schedules.yaml that hosts present 10 minutes after a different one was applied.",
    "refused_files": "Hosts and paths that present a schedules.yaml with errors, which is not applied.",
    "prune_failing_seconds": "Time for which nothing could be pruned; 0 if pruning works.",
    "job_late_seconds": "Time that a slot or a due run of the job has been overdue; 0 if none is.",
    "job_paused": "1 while an operator has paused the job.",
    "job_failure_streak": "Runs that are dead or have failed so far since the job's last success.",
    "job_failure_streak_attempts": "Failed attempts of the runs of job_failure_streak: it rises before a run is dead.",
    "job_failing_runs": "Unfinished runs of the job with a failed attempt.",
    "job_last_success_timestamp_seconds": "Time when a run of the job last succeeded.",
    "job_last_failure_timestamp_seconds": "Time when an attempt of the job last failed.",
    "job_next_slot_timestamp_seconds": "Time of the job's next slot.",
    "recent_runs": "Runs that ended in the last hour. A window, not a counter: do not use rate().",
    "recent_failed_attempts": "Attempts that failed in the last hour, by type of error; at most 7 types for each job, "
    "one of which is other. A window, as recent_runs.",
    "recent_run_duration_seconds": "Latest attempts of runs that succeeded in the last hour. A window, as recent_runs.",
    "worker_running_runs": "Runs that the host holds, of the 50 hosts that were seen last within the hour.",
    "worker_last_seen_timestamp_seconds": "Time when the host last started or finished a run, of the same hosts.",
}


JOB_VALUES: dict[str, Callable[[JobHealth, Health], Value]] = {
    "job_late_seconds": lambda job, now: _age(now, job.overdue_since),
    "job_paused": lambda job, now: job.paused,
    "job_failure_streak": lambda job, now: job.failure_streak,
    "job_failure_streak_attempts": lambda job, now: job.attempt_streak,
    "job_failing_runs": lambda job, now: job.failing,
    "job_last_success_timestamp_seconds": lambda job, now: job.last_success_at,
    "job_last_failure_timestamp_seconds": lambda job, now: job.last_failure_at,
    "job_next_slot_timestamp_seconds": lambda job, now: job.next_slot_at,
}


def _namespace_values(now: Health) -> dict[str, Value]:
    waiting = [job.oldest_due_at for job in _active(now) if not job.paused]
    file = in_force(now)
    return {
        "oldest_due_seconds": max((_age(now, due) for due in waiting), default=0.0),
        "stuck_runs": len(now.stuck),
        "tick_age_seconds": _age(now, now.last_tick_at) if now.last_tick_at else None,
        "other_files": len(drift(now)),
        "refused_files": len(now.refused),
        "prune_failing_seconds": _age(now, file.prune_failing_since if file else None),
    }


def _active(now: Health) -> list[JobHealth]:
    return [job for job in now.jobs if job.enabled and job.retired_at is None]


def _age(now: Health, since: datetime | None) -> float:
    return (now.now - since).total_seconds() if since is not None else 0.0


def text(connection: psycopg.Connection[Any], namespace: str) -> str:
    """Return the metrics of ``namespace`` in Prometheus' text format."""
    now = health.read(connection, namespace, timedelta(hours=1))
    ended = health.ended(connection, namespace, DURATION_BOUNDS_SECONDS, now.now)
    failed = failures.attempts(connection, namespace, now.now - timedelta(hours=1), MAX_FAILED_OF_JOB)
    lines = [
        *gauges(now, health.dead(connection, namespace)),
        *workers(now),
        *recent_runs(ended, now),
        *failed_attempts(failed, now),
    ]
    return "\n".join(lines) + "\n"


def job_labels(now: Health) -> Callable[[str], str]:
    """Return a function that returns the labels of a job. A job without an owner has no such label."""
    owners = {job.job_type: {"owner": job.owner} for job in now.jobs if job.owner}

    @cache
    def of_job(job: str) -> str:
        return pairs({"namespace": now.namespace, "job_name": job, **owners.get(job, {})})

    return of_job


def gauges(now: Health, dead: dict[str, int]) -> Iterator[str]:
    """Yield the lines of the gauges; ``dead`` are the dead runs of each job."""
    label, active, of_job = pairs({"namespace": now.namespace}), _active(now), job_labels(now)
    states = [
        (f'{of_job(job.job_type)},status="{status}"', runs)
        for job in now.jobs
        if job.retired_at is None or job.queued or job.running or job.failed
        for status, runs in (
            ("queued", job.queued),
            ("running", job.running),
            ("failed", job.failed),
            ("dead", dead.get(job.job_type, 0)),
        )
    ]
    in_doubt = [
        (f'{of_job(job)},waits_for="{waits_for}"', now.in_doubt_counts.get((job or None, waits_for), 0))
        for job in sorted({job.job_type for job in active} | {job or "" for job, _ in now.in_doubt_counts})
        for waits_for in ("person", "retry")
    ]
    yield from metric("runs", states)
    yield from metric("effects_in_doubt", in_doubt)
    for name, value in _namespace_values(now).items():
        yield from metric(name, [(label, value)])
    for name, value_of in JOB_VALUES.items():
        yield from metric(name, [(of_job(job.job_type), value_of(job, now)) for job in active])


def workers(now: Health) -> Iterator[str]:
    """Yield the hosts that were seen within the hour."""
    hosts = [(pairs({"namespace": now.namespace, "host": worker.host}), worker) for worker in now.workers]
    yield from metric("worker_running_runs", [(labels, worker.running) for labels, worker in hosts])
    yield from metric("worker_last_seen_timestamp_seconds", [(labels, worker.seen_at) for labels, worker in hosts])


def failed_attempts(failed: Iterable[FailedAttempts], now: Health) -> Iterator[str]:
    """Yield the attempts that failed within the hour, by job and type of error.

    Types are names of classes of users' code: their number is bounded, so that no error creates series without end.
    """
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for group in failed:  # of each job, the most frequent type first
        of_job, name = counts[group.job_type], group.error_type or "none"
        named = len(of_job.keys() - {LOST_WORKER_TYPE, "other"})
        if name not in of_job and named >= MAX_ERROR_TYPES and name != LOST_WORKER_TYPE:
            name = "other"
        of_job[name] = of_job.get(name, 0) + group.attempts
    labels = job_labels(now)
    samples = [
        (f"{labels(job)},{pairs({'error_type': name})}", number)
        for job, of_job in sorted(counts.items())
        for name, number in sorted(of_job.items())
    ]
    yield from metric("recent_failed_attempts", samples)


def recent_runs(ended: Iterable[EndedRuns], now: Health) -> Iterator[str]:
    """Yield the runs that ended within the hour, by status, and a histogram of the durations of successes."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(BUCKETS))
    sums: defaultdict[str, float] = defaultdict(float)
    for part in ended:
        counts[part.job_type, part.status] += part.runs
        if part.status == "succeeded":
            buckets[part.job_type][part.bucket] += part.runs
            sums[part.job_type] += part.seconds
    labels = job_labels(now)
    runs = [(f'{labels(job)},status="{status}"', number) for (job, status), number in sorted(counts.items())]
    yield from metric("recent_runs", runs)
    histogram: list[tuple[Any, ...]] = []
    for job, in_bucket in sorted(buckets.items()):
        of_job = labels(job)
        reached = zip(BUCKETS, accumulate(in_bucket), strict=True)
        histogram += [(f'{of_job},le="{bound}"', number, "_bucket") for bound, number in reached]
        histogram += [(of_job, sums[job], "_sum"), (of_job, sum(in_bucket), "_count")]
    yield from metric("recent_run_duration_seconds", histogram, "histogram")


def metric(name: str, samples: Iterable[tuple[Any, ...]], kind: str = "gauge") -> Iterator[str]:
    """Yield the lines of one metric. A sample has labels, a value, and in a histogram a suffix of the name."""
    full = f"yamlsched_{name}"
    lines = [
        f"{full}{''.join(suffix)}{{{labels}}} {shown(value)}" for labels, value, *suffix in samples if value is not None
    ]
    if lines:
        yield from (f"# HELP {full} {HELP[name]}", f"# TYPE {full} {kind}", *lines)


def shown(value: float | datetime) -> str:
    return f"{value.timestamp() if isinstance(value, datetime) else float(value):.15g}"


def pairs(labels: dict[str, str]) -> str:
    """Return labels as they are written between braces."""
    return ",".join([f'{key}="{label_value(text)}"' for key, text in labels.items()])


def label_value(text: str) -> str:
    r"""Return the value of a label, escaped and of bounded length. Control characters become visible.

    >>> print(label_value('a "b"'))
    a \"b\"
    """
    if text.isidentifier():  # as almost all are
        return text[:MAX_LABEL_CHARS]
    return escape_control(text[:MAX_LABEL_CHARS]).replace("\\", "\\\\").replace('"', '\\"')


def write(path: Path, content: str) -> None:
    """Replace the file atomically, readable by all: its collector must not read half of it, and is another user.

    Raises EnvironmentFailed if the file cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise EnvironmentFailed(f"{path} cannot be written: {error.strerror}") from error
