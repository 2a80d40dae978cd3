"""How things stand, as Prometheus reads it. Written from the database, so any one host can answer for all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import psycopg

from yamlsched.errors import EnvironmentFailed
from yamlsched.operations.health import drift
from yamlsched.store import health
from yamlsched.store.health import EndedRuns, Health

DURATION_BOUNDS_SECONDS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400)
"""Seconds."""
Sample = tuple[dict[str, str], float]


def text(connection: psycopg.Connection[Any], namespace: str) -> str:
    """Return the metrics of ``namespace`` in Prometheus' text format."""
    now = health.read(connection, namespace, timedelta(hours=1))
    lines = [
        *render(now, health.dead(connection, namespace)),
        *durations(health.ended(connection, namespace, DURATION_BOUNDS_SECONDS), now),
    ]
    return "\n".join(lines) + "\n"


def render(now: Health, dead: dict[str, int]) -> Iterator[str]:
    """Yield the lines of the gauges. Those of one job carry its name; instants are seconds since 1970."""
    jobs = [job for job in now.jobs if job.retired_at is None or job.queued or job.running or job.failed]
    active = [job for job in jobs if job.enabled and job.retired_at is None]
    due = [job.oldest_due_at for job in active if job.oldest_due_at is not None and not job.paused]
    label = {"namespace": now.namespace}

    def each(values: Iterable[tuple[str, float | datetime | None]]) -> Iterator[Sample]:
        for name, value in values:
            if value is not None:
                yield {**label, "job": name}, value.timestamp() if isinstance(value, datetime) else value

    states = [
        ({**label, "job": job.job_type, "status": status}, float(number))
        for job in jobs
        for status, number in (
            ("queued", job.queued),
            ("running", job.running),
            ("failed", job.failed),
            ("dead", dead.get(job.job_type, 0)),
        )
    ]
    yield from gauge("runs", "Unfinished runs by status, and dead runs that were not pruned.", states)
    yield from gauge(
        "oldest_due_seconds",
        "Time that the oldest due run has waited for a worker; 0 if none waits.",
        [(label, (now.now - min(due)).total_seconds() if due else 0.0)],
    )
    yield from gauge("stuck_runs", "Runs past their lease or their timeout.", [(label, float(len(now.stuck)))])
    yield from gauge(
        "effects_in_doubt",
        "Effects in doubt (it is unknown whether they happened), by what they wait for: a person, or the run's retry.",
        [
            ({**label, "job": job or "", "waits_for": waits_for}, float(now.in_doubt_counts.get((job, waits_for), 0)))
            for job in sorted({j.job_type for j in active} | {job or "" for job, _ in now.in_doubt_counts})
            for waits_for in ("person", "retry")
        ],
    )
    if now.last_tick_at is not None:
        age = (now.now - now.last_tick_at).total_seconds()
        yield from gauge("tick_age_seconds", "Time since a tick last presented a schedule.", [(label, age)])
    yield from gauge(
        "other_files",
        "Versions of schedules.yaml that hosts present 10 minutes after a different one was applied.",
        [(label, float(len(drift(now))))],
    )
    yield from gauge(
        "refused_files",
        "Hosts and paths that present a schedules.yaml with errors, which is not applied.",
        [(label, float(len(now.refused)))],
    )
    yield from gauge(
        "job_late_seconds",
        "Time that a slot or a due run of the job has been overdue; 0 if none is.",
        each((j.job_type, (now.now - j.overdue_since).total_seconds() if j.overdue_since else 0.0) for j in active),
    )
    yield from gauge(
        "job_paused", "1 while an operator has paused the job.", each((j.job_type, float(j.paused)) for j in active)
    )
    yield from gauge(
        "job_failure_streak",
        "Runs that are dead or have failed so far since the job's last success.",
        each((j.job_type, float(j.failure_streak)) for j in active),
    )
    yield from gauge(
        "job_last_success_timestamp_seconds",
        "Time when a run of the job last succeeded.",
        each((j.job_type, j.last_success_at) for j in active),
    )
    yield from gauge(
        "job_last_failure_timestamp_seconds",
        "Time when an attempt of the job last failed.",
        each((j.job_type, j.last_failure_at) for j in active),
    )
    yield from gauge(
        "job_next_slot_timestamp_seconds",
        "Time of the job's next slot.",
        each((j.job_type, j.next_slot_at) for j in active),
    )


def durations(ended: list[EndedRuns], now: Health) -> Iterator[str]:
    """Yield what ended within the hour: counts by status, and how long the latest attempts of successes took."""
    name = "yamlsched_recent_run_duration_seconds"
    counts: dict[tuple[str, str], int] = {}
    buckets: dict[str, list[int]] = {}
    sums: dict[str, float] = {}
    for part in ended:
        counts[part.job_type, part.status] = counts.get((part.job_type, part.status), 0) + part.runs
        if part.status == "succeeded":
            buckets.setdefault(part.job_type, [0] * (len(DURATION_BOUNDS_SECONDS) + 1))[part.bucket] += part.runs
            sums[part.job_type] = sums.get(part.job_type, 0.0) + part.seconds
    label = {"namespace": now.namespace}
    yield from gauge(
        "recent_runs",
        "Runs that ended in the last hour. A window, not a counter: do not use rate().",
        [({**label, "job": job, "status": status}, float(runs)) for (job, status), runs in sorted(counts.items())],
    )
    if buckets:
        yield f"# HELP {name} Latest attempts of runs that succeeded in the last hour. A window: do not use rate()."
        yield f"# TYPE {name} histogram"
    for job, in_bucket in sorted(buckets.items()):
        given = {**label, "job": job}
        for bound, runs in zip([*map(str, DURATION_BOUNDS_SECONDS), "+Inf"], accumulate(in_bucket), strict=True):
            yield sample(f"{name}_bucket", {**given, "le": bound}, float(runs))
        yield sample(f"{name}_sum", given, sums[job])
        yield sample(f"{name}_count", given, float(sum(in_bucket)))


def gauge(name: str, help: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of one gauge; none without samples."""
    lines = [sample(f"yamlsched_{name}", labels, value) for labels, value in samples]
    if lines:
        yield f"# HELP yamlsched_{name} {help}"
        yield f"# TYPE yamlsched_{name} gauge"
        yield from lines


def sample(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())  # names of jobs need no escapes
    return f"{name}{{{inside}}} {value:.15g}"


def write(path: Path, content: str) -> None:
    """Replace the file at once, so that no collector reads half of it; readable by all, as collectors are others."""
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
