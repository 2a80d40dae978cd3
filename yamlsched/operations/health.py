"""How things stand, and what of it wants a person. Reading asks the database; judging is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from yamlsched import durations
from yamlsched.durations import approximate
from yamlsched.handling.once import settle_command
from yamlsched.store.health import EffectInDoubt, Health, JobHealth, PresentedFile, RefusedFile, read
from yamlsched.times import rfc3339

__all__ = [
    "EffectInDoubt",
    "Health",
    "JobHealth",
    "PresentedFile",
    "Problem",
    "Thresholds",
    "drift",
    "effects_in_doubt",
    "in_force",
    "problems",
    "read",
    "refusal",
    "state",
]

MAX_LISTED_PROBLEMS = 10
"""Effects in doubt that are named one by one."""
DRIFT_TOLERANCE = timedelta(minutes=10)
"""So long hosts may present another file than the one in force: a rolling deploy has ended by then."""


@dataclass(frozen=True)
class Thresholds:
    """What is still healthy. A job's tags ``max-dead:3``, ``max-late:1h`` and ``max-age:26h`` override or add.

    ``max_age`` is the longest time since a job's last success; by default there is none.
    """

    max_dead: int = 0
    within: timedelta = timedelta(hours=1)
    max_late: timedelta = timedelta(minutes=15)
    max_tick_age: timedelta = timedelta(minutes=5)


@dataclass(frozen=True)
class Problem:
    """Something that wants a person: the job, if it is of one, what it is, and the command that shows or mends it."""

    job_type: str | None
    what: str
    remedy: str


def problems(health: Health, thresholds: Thresholds) -> list[Problem]:
    """Return what is beyond ``thresholds``, the whole first, then job by job."""
    found = [*_ticks(health, thresholds), *_refused(health), *_files(health), *_stuck(health), *_in_doubt(health)]
    for job in health.jobs:
        for check in JOB_CHECKS:
            found += check(job, health, thresholds)
    return found


def _ticks(health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    remedy = "yamlsched doctor"
    if health.last_tick_at is None:
        yield Problem(None, f'no tick has ever presented a schedule for namespace "{health.namespace}"', remedy)
    elif (age := health.now - health.last_tick_at) > thresholds.max_tick_age:
        yield Problem(None, f"no tick for {approximate(age)}, the last came from {health.last_tick_host}", remedy)


def _refused(health: Health) -> Iterator[Problem]:
    for file in health.refused:
        yield Problem(None, refusal(file), "run yamlsched validate there")


def refusal(file: RefusedFile) -> str:
    """Return in words that a file is refused, and what to do."""
    mistakes = "1 error" if file.mistakes == 1 else f"{file.mistakes} errors"
    return (
        f"{file.place} presents a file with {mistakes} since {rfc3339(file.since, 'seconds')}; "
        "not applied: run yamlsched validate there"
    )


def _files(health: Health) -> Iterator[Problem]:
    for file in drift(health):
        places = ", ".join(file.presented_by[:3]) + (" and others" if len(file.presented_by) > 3 else "")
        current = in_force(health)
        of = f"{current.hash[:8]} of {current.applied_by}" if current else "none"
        yield Problem(
            None,
            f"{places} has presented another file ({file.hash[:8]}) for {approximate(_drifting(file, current))}; in "
            f"force is {of}",
            "deploy the same version to all hosts, or run yamlsched sync with the right file",
        )


def _stuck(health: Health) -> Iterator[Problem]:
    for run in health.stuck[:10]:
        what = f"run {run.run_id} of {run.job_type} is stuck: {run.why}, held by {run.worker}"
        yield Problem(run.job_type, what, f"yamlsched show {run.run_id}")
    if len(health.stuck) > 10:
        yield Problem(None, f"{len(health.stuck) - 10} more runs are stuck", "yamlsched runs --status running")


def effects_in_doubt(health: Health, waits_for: str) -> int:
    """Return how many effects in doubt wait for a ``person``, or for a ``retry``, which resolves them."""
    return sum(effects for (_, what), effects in health.in_doubt_counts.items() if what == waits_for)


def _in_doubt(health: Health) -> Iterator[Problem]:
    shown = [effect for effect in health.in_doubt if effect.waits_for == "person"][:MAX_LISTED_PROBLEMS]
    for effect in shown:
        yield Problem(
            effect.job_type,
            f'effect "{effect.key}" of run {effect.run_id}{f" of {effect.job_type}" if effect.job_type else ""} is in '
            f"doubt for {approximate(health.now - effect.since)}: look up whether it happened (idempotency key "
            f"{effect.provider_key})",
            f"{settle_command(health.namespace, effect.key)}, then: yamlsched retry {effect.run_id}",
        )
    if more := effects_in_doubt(health, "person") - len(shown):
        what = f"{more} more {'effect is' if more == 1 else 'effects are'} in doubt"
        yield Problem(None, what, "the view yamlsched.effects_in_doubt lists them")


def _dead(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    if job.dead_within > _number(job, "max-dead", thresholds.max_dead):
        span = durations.show(thresholds.within)
        runs = "1 run" if job.dead_within == 1 else f"{job.dead_within} runs"
        last = f": {job.dead_error}" if job.dead_error else ""
        yield Problem(
            job.job_type,
            f"{job.job_type}: {runs} died within {span}{last}",
            f"yamlsched runs --job {job.job_type} --status dead --since {span}",
        )


def _late(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    limit = _span(job, "max-late", thresholds.max_late)
    if limit is not None and job.overdue_since is not None and health.now - job.overdue_since > limit:
        late = approximate(health.now - job.overdue_since)
        yield Problem(job.job_type, f"{job.job_type}: late by {late}: {job.overdue_why}", "yamlsched doctor")


def _old(job: JobHealth, health: Health, thresholds: Thresholds) -> Iterator[Problem]:
    limit = _span(job, "max-age", None)
    if limit is None or not job.enabled or job.retired_at is not None or job.paused:
        return
    since = job.last_success_at or job.effective_from
    if health.now - since > limit:
        what = f"{job.job_type}: no success for {approximate(health.now - since)}, the limit is {durations.show(limit)}"
        yield Problem(job.job_type, what, f"yamlsched runs --job {job.job_type} --limit 5")


JOB_CHECKS: tuple[Callable[[JobHealth, Health, Thresholds], Iterator[Problem]], ...] = (_dead, _late, _old)


def _tag(job: JobHealth, name: str) -> str | None:
    return next((tag.removeprefix(f"{name}:") for tag in job.tags if tag.startswith(f"{name}:")), None)


def _number(job: JobHealth, name: str, default: int) -> int:
    text = _tag(job, name)
    return int(text) if text is not None and text.isdigit() else default


def _span(job: JobHealth, name: str, default: timedelta | None) -> timedelta | None:
    text = _tag(job, name)
    if text is None:
        return default
    try:
        return durations.parse(text)
    except ValueError:  # a tag that only looks like ours
        return default


def in_force(health: Health) -> PresentedFile | None:
    """Return the file that was applied last."""
    return next((file for file in health.files if file.in_force), None)


def drift(health: Health) -> list[PresentedFile]:
    """Return the files that are presented though another has been in force for long enough."""
    current = in_force(health)
    return [file for file in health.files if not file.in_force and _drifting(file, current) > DRIFT_TOLERANCE]


def _drifting(file: PresentedFile, current: PresentedFile | None) -> timedelta:
    """Return how long ``file`` was presented beside ``current``: a deploy that reached its host in time ends that."""
    if file.presented_since_at is None or file.last_presented_at is None:
        return timedelta(0)
    applied_at = current.applied_at if current is not None else None
    return file.last_presented_at - max(file.presented_since_at, applied_at or file.presented_since_at)


def state(job: JobHealth, health: Health) -> str:
    """Return one word for how ``job`` is, the gravest first."""
    if job.retired_at is not None:
        return "retired"
    if any(run.job_type == job.job_type for run in health.stuck):
        return "stuck"
    if job.overdue_since is not None:
        return "late"
    if job.failure_streak:
        return "failing"
    if job.paused:
        return "paused"
    if not job.enabled:
        return "disabled"
    return "running" if job.running else "ok" if job.last_success_at else "new"
