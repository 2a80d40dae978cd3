"""How a job is now: its last success, what failed, what it waits for down to the root, and what
helps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from yamlsched.ask import attention, health, history, runs
from yamlsched.ask.health import Health, JobHealth
from yamlsched.ask.problem import Thresholds
from yamlsched.ask.runs import StoredRun
from yamlsched.ask.why import latest_slot, off_reason
from yamlsched.db.query import fetch_column
from yamlsched.durations import between
from yamlsched.errors import Refused
from yamlsched.runs.lifecycle import error_text
from yamlsched.sync import hosts
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times
from yamlsched.timetable.times import short_utc
from yamlsched.timetable.zones import zone

MAX_HOPS = 20
"""Runs of a chain that are named."""


@dataclass(frozen=True)
class JobCondition:
    """How a job is. ``run_ids`` are its first unfinished runs, and the runs that these wait for,
    down to the root.
    """

    job_type: str
    now: datetime
    state: str
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_failure_run_id: int | None
    last_error: str | None
    next_slot_at: datetime | None
    run_ids: list[int]
    lines: list[str]
    remedies: list[str]


def condition(connection: Connection[Any], namespace: str, job: Definition) -> JobCondition:
    """Return how ``job`` is now."""
    now = health.read(connection, namespace, Thresholds().within, [job.id])
    [row] = now.jobs
    ids = fetch_column(connection, "history.chain", id=job.id, limit=MAX_HOPS)
    chain = [run for id in ids if (run := runs.run(connection, id)) is not None]
    failed = (
        runs.run(connection, row.last_failure_run_id)
        if row.last_failure_run_id is not None
        else None
    )
    expired = [
        runs.run(connection, id) for id in fetch_column(connection, "history.expired", id=job.id)
    ]
    off = off_reason(job, now.now, hosts.environment_in_use(connection, namespace))
    lines = [
        *_outcomes(row, now, failed),
        *(_expired(run, now.now) for run in expired if run is not None),
        *(_state(run, now.now) for run in chain),
        *(now.why_no_worker(job.job_type, row.queue) if chain or row.late_since else ()),
        *([off] if off else ()),
        *_slots(row, job, now.now),
    ]
    return JobCondition(
        job_type=job.job_type,
        now=now.now,
        state=row.state,
        last_success_at=row.last_success_at,
        last_failure_at=row.last_failure_at,
        last_failure_run_id=row.last_failure_run_id,
        last_error=error_text(row.last_error_type, row.last_error) or None,
        next_slot_at=row.next_slot_at,
        run_ids=ids,
        lines=lines,
        remedies=list(dict.fromkeys(_remedies(row, now, chain, failed))),
    )


def _outcomes(row: JobHealth, now: Health, failed: StoredRun | None) -> Iterator[str]:
    if row.last_success_at is None:
        yield "no run has succeeded yet"
    else:
        yield (
            f"last success: {between(row.last_success_at, now.now)} ago, at"
            f" {short_utc(row.last_success_at)}"
        )
    if failed is not None and row.last_failure_at is not None and row.failure_streak:
        error = error_text(row.last_error_type, row.last_error)
        ago = between(row.last_failure_at, now.now)
        yield (
            f"last failure: run {failed.id}, {failed.status}, {ago}"
            f" ago{f': {error}' if error else ''}"
        )
        if row.changed:
            yield row.changed
    if row.late_since is not None:
        yield f"late since {short_utc(row.late_since)}: {row.late_why}"


def _expired(run: StoredRun, now: datetime) -> str:
    ago = between(run.finished_at or now, now)
    return f"run {run.id} expired {ago} ago: {run.last_error}"


def _state(run: StoredRun, now: datetime) -> str:
    """Return the state of a run of the chain, and what it waits for."""
    what = f"run {run.id} of {run.job_type}"
    if run.hook and run.parent_id:
        what += f", which reports {runs.ENDS[run.hook]} of run {run.parent_id},"
    if run.finished_at is not None:
        ended = "died" if run.status == "dead" else "was cancelled"
        error = error_text(run.error_type, run.last_error)
        return f"{what} {ended} {between(run.finished_at, now)} ago{f': {error}' if error else ''}"
    waits = history.waits_for(run, now)
    if run.waits:
        return f"{what} {waits.removeprefix(', ')}"
    return f"{what} is {run.status}{waits}, attempt {run.attempts} of {run.max_attempts}"


def _slots(row: JobHealth, job: Definition, now: datetime) -> Iterator[str]:
    if job.schedule is None:
        yield "it has no cron: it runs when it is enqueued, or as a hook of another job"
        return
    latest = None
    with suppress(Refused):  # no slot within decades
        latest = latest_slot(job, now)
    if latest is not None and latest <= now:
        yield (
            f'latest slot: {times.show(latest, zone(job.timezone))}; "yamlsched why --at"'
            " explains it"
        )
    if row.next_slot_at is not None and row.enabled and row.retired_at is None:
        yield f"next slot: {times.show(row.next_slot_at, zone(job.timezone))}"


def _remedies(
    row: JobHealth, now: Health, chain: list[StoredRun], failed: StoredRun | None
) -> Iterator[str]:
    """Yield the commands that help: for the root of a chain first."""
    ended: defaultdict[str, list[str]] = defaultdict(list)
    for run in reversed(chain):
        if run.finished_at is not None:
            ended[run.job_type].append(str(run.id))
        elif holder := re.search(r".*, held by run (\d+)", run.waits or "", re.S):
            yield f"yamlsched show {holder[1]}; if it hangs: yamlsched cancel {holder[1]}"
    for ids in ended.values():
        yield f"yamlsched show {ids[0]}; then yamlsched retry {' '.join(ids)}"
    no_worker = now.why_no_worker(row.job_type, row.queue) if chain else ()
    problems = [
        problem
        for problem in attention.problems(now, Thresholds())
        if problem.job_type == row.job_type or problem.kind == "tick" or problem.what in no_worker
    ]
    own = f"yamlsched why {row.job_type}"
    yield from (problem.remedy for problem in problems if problem.remedy != own)
    if failed is not None and row.failure_streak and not row.dead_within:
        step = history.next_step(failed)
        yield f"yamlsched show {failed.id}" + (f"; then {step}" if failed.status == "dead" else "")
    if row.paused and all(problem.kind != "paused" for problem in problems):
        yield f"yamlsched resume {row.job_type}"
