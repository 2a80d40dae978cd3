"""Building and running a worker: the one place that knows how."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from yamlsched import log, plugin_manager
from yamlsched.db import migrations
from yamlsched.db.query import Connection
from yamlsched.errors import EnvironmentFailed
from yamlsched.plugins import WorkerTask
from yamlsched.schedule.job import Job, Queue
from yamlsched.service import startable
from yamlsched.service.host import default_concurrency, permit_folder
from yamlsched.service.steps import Target, WorkOptions, WorkResult
from yamlsched.sync import hosts, revision
from yamlsched.sync.apply import claimable_jobs
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.text import did_you_mean, names_for_log
from yamlsched.worker import claiming
from yamlsched.worker import registration as registrations
from yamlsched.worker.attempt import EventQueue, Workload
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.local.pool import Pool
from yamlsched.worker.permits import ConcurrencyPermits
from yamlsched.worker.registration import Registration, WorkerName, own_id
from yamlsched.worker.worker import Worker

DEFAULT_ASYNC_CONCURRENCY = 200
"""Runs of a queue with mode: async that execute at once on a host."""


class Claimable(NamedTuple):
    """The jobs whose runs a host may claim, with their scope, and those that it cannot start."""

    jobs: Mapping[str, Job]
    scope: ClaimScope
    cannot_start: Mapping[str, str]  # why, by job


def create_worker(
    connection: Connection,
    dsn: str,
    namespace: str,
    claims: Claimable,
    schedule: ScheduleFile,
    options: WorkOptions,
    is_continuous: bool = False,
    registration: Registration | None = None,
) -> Worker:
    """Return a worker for the due runs of the jobs of ``claims``.

    A worker claims only jobs that its own file maps to a handler: a row in the database can never
    name code to run. Closes ``connection``: no session must be open when the worker forks.
    """
    connection.close()
    workload = Workload(
        dsn,
        namespace,
        claims.jobs,
        claims.scope,
        schedule.real_file,
        schedule.folders,
        Path(schedule.path),
    )
    folder = permit_folder(Path(schedule.path))
    concurrency = options.concurrency or _concurrency(claims.jobs)
    events = EventQueue()

    def permits(name: str, count: int) -> ConcurrencyPermits:
        return ConcurrencyPermits(None if options.worker else folder / name, count)

    def create_pool(name: str, queue: Queue, workload: Workload) -> Pool:
        limit = queue.concurrency or DEFAULT_ASYNC_CONCURRENCY
        return Pool(workload, permits(f"queue-{name}", limit), events, is_async=True)

    processes = Pool(workload, permits("processes", concurrency), events)
    return Worker(workload, processes, events, options, create_pool, is_continuous, registration)


def register(
    connection: Connection,
    namespace: str,
    claims: Claimable,
    schedule: ScheduleFile,
    options: WorkOptions,
) -> Registration | None:
    """Write the rows of a worker that starts; None: it has to leave."""
    name = WorkerName(
        namespace=namespace,
        id=options.worker or own_id(),
        host=schedule.host,
        path=schedule.path,
        revision=claims.scope.revision,
        is_own=options.worker is None,
    )
    queues = {job.queue for job in claims.jobs.values()}
    started = {job.queue: job.queue_rules.start for job in claims.jobs.values()}
    most = {queue: start.max_workers for queue, start in started.items() if start}
    registration = registrations.register(
        connection, name, queues, schedule.queues or (), most, claims.cannot_start
    )
    if isinstance(registration, str):
        log.warning("worker.refused", worker=name.id, why=registration)
        return None
    return registration


def _concurrency(jobs: Mapping[str, Job]) -> int:
    """Return how many runs with a process to themselves execute at once: as many as a queue of
    ``jobs`` asks for.
    """
    named = (job.queue_rules.concurrency or 0 for job in jobs.values() if not job.is_async)
    return max(default_concurrency(), *named, 0)


def claimable(
    connection: Connection,
    schedule: ScheduleFile,
    synced: SyncResult,
    has_end: bool = False,
) -> Claimable:
    """Return the jobs whose runs this host may claim; ``has_end``: for a worker that claims nothing
    which may take longer than the time that it has left.
    """
    if few := migrations.few_connections(connection):
        raise EnvironmentFailed(
            f"{few}: raise it with alter role or alter database ... connection limit"
        )
    namespace = str(synced.namespace)
    jobs = claimable_jobs(connection, schedule, synced)
    report_unknown_queues(schedule, synced)
    jobs = {name: job for name, job in jobs.items() if schedule.serves(job.queue, job.queue_rules)}
    cannot_start = _cannot_start(connection, schedule, namespace, jobs)
    jobs = {name: job for name, job in jobs.items() if name not in cannot_start}
    code = revision.code_revision(str(schedule.real_file), os.environ)
    scope = claiming.scope(connection, namespace, jobs, code, has_end)
    return Claimable(jobs, scope, cannot_start)


def report_unknown_queues(schedule: ScheduleFile, synced: SyncResult) -> None:
    """Report queues of --queue that the file does not have. The others are served."""
    if synced.queues is None:
        return
    known = sorted(synced.queues)
    for name in schedule.unknown_queues(known):
        remedy = did_you_mean(name, known, f"The file has: {', '.join(known)}.")
        log.error("queue.unknown", queue=name, file=schedule.path, remedy=remedy)
        synced.has_findings = True


def _cannot_start(
    connection: Connection, schedule: ScheduleFile, namespace: str, jobs: Mapping[str, Job]
) -> dict[str, str]:
    """Return which of the jobs of its queues this host cannot start, and why. A place stores it; a
    worker that is no place has it in its own row.
    """
    missing = startable.unstartable(jobs, schedule.real_file, schedule.handler_path, os.environ)
    added = list(missing)
    if schedule.syncs:
        added = hosts.store_cannot_start(connection, namespace, schedule, jobs, missing)
    if added:
        log.warning(
            "jobs.not_startable",
            file=schedule.path,
            jobs=names_for_log(added),
            reason=missing[added[0]],
            see="yamlsched status",
        )
    return missing


def run_worker(worker: Worker, target: Target, result: WorkResult, *tasks: WorkerTask) -> None:
    """Run a worker until it ends. A run that died is a finding."""
    worker.report.listeners += plugin_manager.listeners()
    plugin_tasks = plugin_manager.worker_tasks(worker, target.environment)
    report = asyncio.run(worker.run(*tasks, *plugin_tasks))
    result.has_findings |= report.dead_count > 0
