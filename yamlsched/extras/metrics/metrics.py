"""The health of a namespace as Prometheus metrics, read from the database: one host can report for
all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import psycopg

from yamlsched.ask import health
from yamlsched.ask.health import Health, JobHealth, WorkerHost
from yamlsched.ask.queues import QueueHealth
from yamlsched.db.query import fetch, fetch_column
from yamlsched.runs.lifecycle import LOST_WORKER
from yamlsched.text import escape_control


class MoreOfJob(NamedTuple):
    """What the health of a job does not have."""

    job_type: str
    dead: int = 0  # that retention has not pruned
    held_up_since: datetime | None = None  # its oldest run has waited for other jobs


class EndedRuns(NamedTuple):
    """Runs of a job that ended within the hour; their latest attempts took longer than ``bucket``
    of the bounds.
    """

    job_type: str
    status: str
    bucket: int
    runs: int
    seconds: float


class FailedAttempts(NamedTuple):
    """How many attempts of a job failed with errors of one type; "" if they have none."""

    job_type: str
    error_type: str
    attempts: int
    hour: None  # of all


DURATION_BOUNDS_SECONDS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400)
MAX_ERROR_TYPES = 5
"""Types of error of one job that are counted by themselves: the most frequent, and LostWorker. The
rest is other.
"""
MAX_FAILED_OF_JOB = 1_000
"""Failed runs of a job whose attempts are counted."""
MAX_LABEL_CHARS = 200
HOUR = timedelta(hours=1)
LOST_WORKER_TYPE = LOST_WORKER["lost_type"]
BUCKETS = (*map(str, DURATION_BOUNDS_SECONDS), "+Inf")
Value = float | datetime | str | None
"""An instant is written as seconds since 1970; None is not written."""

HELP = {
    "metrics_timestamp_seconds": "Time at which these metrics were read, by the database's clock.",
    "runs": "Unfinished runs by status, and dead runs that were not pruned.",
    "effects_in_doubt": (
        "Effects of unknown result, by what they wait for: a person, or the run's retry."
    ),
    "oldest_due_seconds": "Time that the oldest due run has waited for a worker; 0 if none waits.",
    "stuck_runs": "Runs past their lease or their timeout.",
    "repaired_runs": (
        "Waiting runs that a sweep had to release, because a session had died; normally 0."
    ),
    "tick_age_seconds": "Time since the latest tick.",
    "other_files": (
        "Versions of schedules.yaml that hosts still use 10 minutes after a different one was"
        " applied."
    ),
    "refused_files": ("Hosts and paths whose schedules.yaml has errors, and is not applied."),
    "prune_failing_seconds": "Time for which nothing could be pruned; 0 if pruning works.",
    "job_late_seconds": (
        "Time since a run could have started, or since the unfinished slot; 0 if not late."
    ),
    "job_held_up_seconds": (
        "Time that the oldest run of the job has waited for jobs that it follows; 0 if none waits."
    ),
    "job_paused": "1 while the job is paused.",
    "job_paused_after": (
        "Dead runs in a row after which the job was paused by its pause_after, until it is resumed."
    ),
    "job_failure_streak": "Runs that are dead or have failed so far since the job's last success.",
    "job_failure_streak_attempts": (
        "Failed attempts of the runs of job_failure_streak: it rises before a run is dead."
    ),
    "job_failing_runs": "Unfinished runs of the job that fail again and again.",
    "job_last_success_timestamp_seconds": "Time when a run of the job last succeeded.",
    "job_last_failure_timestamp_seconds": "Time when an attempt of the job last failed.",
    "job_next_slot_timestamp_seconds": "Time of the job's next slot.",
    "recent_runs": "Runs that ended in the last hour. A window, not a counter: do not use rate().",
    "recent_failed_attempts": (
        "Attempts that failed in the last hour, by type of error. A window, as recent_runs."
    ),
    "recent_run_duration_seconds": (
        "Latest attempts of runs that succeeded in the last hour. A window, as recent_runs."
    ),
    "queue_runs": (
        "Runs of a queue that have been due for 10 seconds, or execute, without those of leaving"
        " workers."
    ),
    "queue_workers": "Workers that serve a queue. Ticks are not counted.",
    "queue_failed_starts": "Starts of workers of a queue that have failed in a row.",
    "queue_oldest_due_seconds": "Time for which the oldest due run of a queue could have been"
    " claimed.",
    "worker_running_runs": (
        "Runs that the host holds, for the 50 hosts seen last within the hour."
    ),
    "worker_last_seen_timestamp_seconds": (
        "Time when the host last started or finished a run, of the same hosts."
    ),
}


JOB_VALUES = {
    "job_paused": "paused",
    "job_paused_after": "paused_after",
    "job_failure_streak": "failure_streak",
    "job_failure_streak_attempts": "attempt_streak",
    "job_failing_runs": "failing",
    "job_last_success_timestamp_seconds": "last_success_at",
    "job_last_failure_timestamp_seconds": "last_failure_at",
    "job_next_slot_timestamp_seconds": "next_slot_at",
}
"""The gauges of active jobs that show a field of ``JobHealth``."""
STATUSES = ("queued", "running", "failed", "dead")


class Labels(dict[str, str]):
    """The labels of each job, by its name. A job without an owner has no such label."""

    def __init__(self, namespace: str, jobs: Iterable[JobHealth]) -> None:
        self.of_namespace = pairs({"namespace": namespace})
        of_owner = cache(lambda owner: f",{pairs({'owner': owner})}" if owner else "")
        super().__init__((job.job_type, self[job.job_type] + of_owner(job.owner)) for job in jobs)

    def __missing__(self, job: str) -> str:
        """Return the labels of a job that was created after the others were read, or of none: its
        run was pruned.
        """
        return f'{self.of_namespace},job_name="{label_value(job)}"'


def text(connection: psycopg.Connection[Any], namespace: str) -> str:
    """Return the metrics of ``namespace`` in Prometheus' text format."""
    now = health.read(connection, namespace, HOUR)
    parameters = {
        "namespace": namespace,
        "now": now.now,
        "bounds": [float(bound) for bound in DURATION_BOUNDS_SECONDS],
    }
    more = {row.job_type: row for row in fetch(connection, MoreOfJob, "metrics.jobs", **parameters)}
    ended = fetch(connection, EndedRuns, "metrics.ended", **parameters)
    recent = {"namespace": namespace, "since": now.now - HOUR, "of_job": MAX_FAILED_OF_JOB}
    failed = fetch(connection, FailedAttempts, "failures.attempts", **recent, by_hour=False)
    repaired = fetch_column(connection, "metrics.repairs", **parameters)
    labels = Labels(namespace, now.jobs)
    lines = [
        *gauges(now, more, labels),
        *metric("repaired_runs", [(labels.of_namespace, runs) for runs in repaired]),
        *workers(namespace, now.workers),
        *queues(namespace, now.queues, now.now),
        *recent_runs(ended, labels),
        *failed_attempts(failed, labels),
    ]
    return "\n".join([*lines, ""])


def gauges(now: Health, more: Mapping[str, MoreOfJob], labels: Labels) -> Iterator[str]:
    """Yield the lines of the gauges; those of one job together."""
    samples = []
    for job in now.jobs:
        dead = more.get(job.job_type, MoreOfJob(job.job_type)).dead
        if job.is_present or dead:
            numbers = (job.queued, job.running, job.failed, dead)
            for status, number in zip(STATUSES, numbers, strict=True):
                samples.append((f'{labels[job.job_type]},status="{status}"', number))
    yield from metric("runs", samples)
    active = [job for job in now.jobs if job.enabled and job.retired_at is None]
    yield from metric("effects_in_doubt", _in_doubt(now, [job.job_type for job in active], labels))
    for name, value in _namespace_values(now, active).items():
        yield from metric(name, [(labels.of_namespace, value)])
    late = [(labels[job.job_type], _age(now, job.late_since)) for job in active]
    yield from metric("job_late_seconds", late)
    held_up = [
        (labels[job.job_type], _age(now, more[job.job_type].held_up_since))
        for job in active
        if job.job_type in more
    ]
    yield from metric("job_held_up_seconds", held_up)
    for name, attribute in JOB_VALUES.items():
        yield from metric(name, [(labels[job.job_type], getattr(job, attribute)) for job in active])


def _in_doubt(now: Health, active: Sequence[str], labels: Labels) -> list[tuple[str, Value]]:
    """Return the effects in doubt of each active job, and of the others that have any; "" stands
    for pruned runs.
    """
    counts = now.in_doubt_counts
    return [
        (f'{labels[job]},waits_for="{what}"', counts.get((job or None, what), 0))
        for job in sorted({*active, *(job or "" for job, _ in counts)})
        for what in ("person", "retry")
    ]


def _namespace_values(now: Health, active: Sequence[JobHealth]) -> dict[str, Value]:
    file = now.file_in_use
    return {
        "metrics_timestamp_seconds": now.now,
        "oldest_due_seconds": max(
            (_age(now, job.oldest_due_at) for job in active if not job.paused), default=0.0
        ),
        "stuck_runs": len(now.stuck),
        "tick_age_seconds": _age(now, now.last_tick_at) if now.last_tick_at else None,
        "other_files": len(now.drift),
        "refused_files": len(now.refused),
        "prune_failing_seconds": _age(now, file.prune_failing_since if file else None),
    }


def _age(now: Health, since: datetime | None) -> float:
    return (now.now - since).total_seconds() if since is not None else 0.0


def workers(namespace: str, seen: Iterable[WorkerHost]) -> Iterator[str]:
    """Yield the hosts that were ``seen`` within the hour."""
    hosts = [(pairs({"namespace": namespace, "host": worker.host}), worker) for worker in seen]
    yield from metric("worker_running_runs", [(labels, worker.running) for labels, worker in hosts])
    yield from metric(
        "worker_last_seen_timestamp_seconds", [(labels, worker.seen_at) for labels, worker in hosts]
    )


def queues(namespace: str, loads: Iterable[QueueHealth], now: datetime) -> Iterator[str]:
    """Yield how much there is to do in each queue, and who does it."""
    by_queue = [(pairs({"namespace": namespace, "queue": each.queue}), each) for each in loads]
    runs = [
        (f'{labels},state="{state}"', count)
        for labels, each in by_queue
        for state, count in (("due", each.due), ("running", each.executing))
    ]
    yield from metric("queue_runs", runs)
    workers = [
        (f'{labels},state="{state}"', getattr(each, state))
        for labels, each in by_queue
        for state in ("live", "starting", "leaving")
    ]
    yield from metric("queue_workers", workers)
    ages = [
        (labels, (now - each.oldest_due_at).total_seconds() if each.oldest_due_at else 0.0)
        for labels, each in by_queue
    ]
    yield from metric("queue_oldest_due_seconds", ages)
    failed = [(labels, each.failed_starts) for labels, each in by_queue]
    yield from metric("queue_failed_starts", failed)


def failed_attempts(failed: Iterable[FailedAttempts], labels: Labels) -> Iterator[str]:
    """Yield the attempts that failed within the hour, by job and type of error.

    Types are names of classes of users' code: their number is bounded, so that no error creates
    series without end.
    """
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for group in failed:  # of each job, the most frequent type first
        of_job, name = counts[group.job_type], group.error_type or "none"
        named = len(of_job.keys() - {LOST_WORKER_TYPE, "other"})
        if name not in of_job and named >= MAX_ERROR_TYPES and name != LOST_WORKER_TYPE:
            name = "other"
        of_job[name] = of_job.get(name, 0) + group.attempts
    samples = [
        (f"{labels[job]},{pairs({'error_type': name})}", number)
        for job, of_job in sorted(counts.items())
        for name, number in sorted(of_job.items())
    ]
    yield from metric("recent_failed_attempts", samples)


def recent_runs(ended: Iterable[EndedRuns], labels: Labels) -> Iterator[str]:
    """Yield the runs that ended within the hour, by status, and a histogram of the durations of
    successes.
    """
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(BUCKETS))
    sums: defaultdict[str, float] = defaultdict(float)
    for part in ended:
        counts[part.job_type, part.status] += part.runs
        if part.status == "succeeded":
            buckets[part.job_type][part.bucket] += part.runs
            sums[part.job_type] += part.seconds
    runs = [
        (f'{labels[job]},status="{status}"', number)
        for (job, status), number in sorted(counts.items())
    ]
    yield from metric("recent_runs", runs)
    full, lines = "yamlsched_recent_run_duration_seconds", []
    for job, in_bucket in sorted(buckets.items()):
        reached = zip(BUCKETS, accumulate(in_bucket), strict=True)
        lines += [
            f'{full}_bucket{{{labels[job]},le="{bound}"}} {number}' for bound, number in reached
        ]
        lines.append(f"{full}_sum{{{labels[job]}}} {shown(sums[job])}")
        lines.append(f"{full}_count{{{labels[job]}}} {sum(in_bucket)}")
    yield from family("recent_run_duration_seconds", lines, "histogram")


def metric(name: str, samples: Iterable[tuple[str, Value]]) -> Iterator[str]:
    """Return the lines of one metric. A sample has labels and a value."""
    lines = [
        f"yamlsched_{name}{{{labels}}} {shown(value)}"
        for labels, value in samples
        if value is not None
    ]
    return family(name, lines)


def family(name: str, lines: Sequence[str], kind: str = "gauge") -> Iterator[str]:
    """Yield ``lines`` after what describes their metric; nothing if there are none."""
    full = f"yamlsched_{name}"
    if lines:
        yield from (f"# HELP {full} {HELP[name]}", f"# TYPE {full} {kind}", *lines)


def shown(value: float | datetime | str) -> str:
    """Return a value as it is written; SQL has formatted those that are strings."""
    if isinstance(value, str):
        return value
    return f"{value.timestamp() if isinstance(value, datetime) else float(value):.15g}"


def pairs(labels: dict[str, str]) -> str:
    """Return labels as they are written between braces."""
    return ",".join([f'{key}="{label_value(text)}"' for key, text in labels.items()])


def label_value(text: str) -> str:
    r"""Return the value of a label, escaped and of bounded length. Control characters become
    visible.

    >>> print(label_value('a "b"'))
    a \"b\"
    """
    if text.isidentifier():  # as almost all are
        return text[:MAX_LABEL_CHARS]
    return escape_control(text[:MAX_LABEL_CHARS]).replace("\\", "\\\\").replace('"', '\\"')
