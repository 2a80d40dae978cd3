"""Work until stopped, and sync each minute in a helper process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import psycopg

from yamlsched import db, log, plugin_manager
from yamlsched.db.query import Connection
from yamlsched.errors import EnvironmentFailed, YamlschedError
from yamlsched.plugins import WorkerTask
from yamlsched.schedule.job import Job
from yamlsched.service import companions
from yamlsched.service.start_commands import StartContext
from yamlsched.service.start_rule import QueueStart
from yamlsched.service.starts import StartTask, queue_starts
from yamlsched.service.steps import (
    OnMessages,
    Target,
    WorkOptions,
    WorkResult,
    failure,
    housekeep,
    inspect,
    notify,
    poll_database,
    sync_if_needed,
)
from yamlsched.service.workers import (
    Claimable,
    claimable,
    create_worker,
    register,
    run_worker,
)
from yamlsched.sync import hosts
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.flow import account_for_due_slots
from yamlsched.worker import clock
from yamlsched.worker.attempt import wait
from yamlsched.worker.forking import accept_signals
from yamlsched.worker.sessions import run_in_helper
from yamlsched.worker.worker import Worker

SYNC_INTERVAL_SECONDS = 60
SYNC_TIMEOUT_SECONDS = 300.0
REPORT_TIMEOUT_SECONDS = 20.0
CONTINUES_WITH_LAST_FILE = "until it is fixed, the jobs of the last readable file are run"


def loop(
    target: Target, options: WorkOptions, on_messages: OnMessages, *tasks: WorkerTask
) -> WorkResult:
    """Work and sync until stopped. ``tasks`` are executed beside the worker. A worker with an id
    reads the file instead.

    Raises NewerTables if a newer yamlsched has migrated the tables meanwhile. A run that dies is
    logged, but is not a finding: only a loop that may not start has findings.
    """
    result, syncs = WorkResult(), options.worker is None
    schedule = replace(target.read_file(), syncs=syncs)
    with target.database() as dsn, db.connect(dsn) as connection:
        snapshot = poll_database(connection, schedule, target.may_migrate)
        read = sync_if_needed if syncs else inspect
        synced = read(connection, schedule, snapshot)
        on_messages(result.add(synced))
        if not synced.may_claim:
            result.has_findings = True
            return result
        namespace, has_end = str(synced.namespace), options.max_time is not None
        claims = claimable(connection, schedule, synced, has_end)
        # until there is a handler: it would end the process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        registration = register(connection, namespace, claims, schedule, options)
        if registration is None:
            accept_signals()
            return result
        worker = create_worker(
            connection, dsn, namespace, claims, schedule, options, True, registration
        )
        file = FollowedFile(
            schedule.sha256 if synced.is_readable else None,
            synced.jobs or claims.jobs,
            frozenset(claims.jobs),
            schedule.real_file,
            schedule.folders,
        )
        context = StartContext.from_file(schedule, dsn, namespace)
        start_task = StartTask(context, queue_starts(schedule, synced) if syncs else ())
        sync_task = SyncTask(
            target,
            dsn,
            namespace,
            on_messages,
            file,
            snapshot.now,
            result.skipped,
            start_task=start_task,
            syncs=syncs,
            has_end=has_end,
        )
        beside = (sync_task.run, start_task.run, companions.keep_notified, *tasks)
        run_worker(worker, target, result, *beside)
        if sync_task.newer_tables is not None:
            raise sync_task.newer_tables
    result.has_findings = False
    return result


@dataclass(frozen=True)
class FollowedFile:
    """The file that the worker's jobs are from; no ``hash``: none that could be read.

    ``file`` and ``folders``, those of --path, are without links.
    """

    hash: str | None
    jobs: Mapping[str, Job]  # whose entry is valid
    claimable: frozenset[str]  # names of those that the worker may claim
    file: Path = Path()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncUpdate:
    """What a sync found. ``file`` is None if the worker's jobs stay the same, ``claims`` if it was
    not read.
    """

    now: datetime  # of the database
    result: SyncResult
    file: FollowedFile | None = None
    claims: Claimable | None = None
    # whose workers to start from now on; None: as before
    starts: tuple[StartContext, tuple[QueueStart, ...]] | None = None


@dataclass
class SyncTask:
    """Syncs at each minute of the database's clock, and immediately on SIGHUP, which also replaces
    the children.
    """

    target: Target
    dsn: str
    namespace: str
    on_messages: OnMessages
    file: FollowedFile
    now: datetime  # of the database, a moment ago
    skipped: set[str]  # not reported to plugins yet
    dead_count: int = 0  # runs that had died at the last report to plugins
    newer_tables: db.migrations.NewerTables | None = None  # why the worker stops
    # by the latest sync that could read the file: it is not another environment's
    may_claim: bool = True
    start_task: StartTask | None = None
    syncs: bool = True  # False: it reads the file
    has_end: bool = False  # the worker's scope has timeouts

    async def run(self, worker: Worker) -> None:
        """Sync until the worker ends. A sync that fails is logged, and tried again the next minute.

        Tables that a newer yamlsched has migrated stop the worker: its handlers have the grace
        period to finish.
        """
        hangup = asyncio.Event()
        is_hangup = False

        def on_hangup() -> None:
            nonlocal is_hangup
            is_hangup = True
            hangup.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        worker.on_moved = hangup.set
        messages: list[str] = []
        next_at = clock.now() + _until_next_minute(self.now)
        while True:
            await wait(hangup, max(0.0, next_at - clock.now()))
            if is_hangup:
                log.info("worker.reloading")
                worker.reload_handlers()
            is_reloaded, is_hangup = is_hangup, False
            started = clock.now()
            if worker.has_moved():
                hangup.clear()  # this sync reads it
            worker.read_path = os.path.realpath(self.target.file)
            try:
                async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                    update = await run_in_helper(self._sync)
            except db.migrations.NewerTables as error:
                self.newer_tables = error
                worker.stop()
                return
            except (YamlschedError, psycopg.Error, TimeoutError) as error:
                log.warning(
                    "sync.failed", error=failure(error) or f"took over {SYNC_TIMEOUT_SECONDS:.0f} s"
                )
                next_at = started + SYNC_INTERVAL_SECONDS
                self._pause(worker)
                await self._report(worker, is_healthy=False)
                continue
            next_at = clock.now() + _until_next_minute(update.now)
            if update.result.messages != messages:
                messages = update.result.messages
                self.on_messages(messages)
            self._apply(update, worker, is_reloaded)
            await self._report(worker, is_healthy=not update.result.has_findings)

    async def _report(self, worker: Worker, is_healthy: bool) -> None:
        """Report to plugins how a sync went: not well if a run has died since the last one."""
        if not self.syncs:
            return
        dead_count = worker.report.dead_count
        report = plugin_manager.start(
            "tick_ended",
            environment=self.target.environment,
            namespace=self.namespace,
            is_healthy=is_healthy and dead_count == self.dead_count,
            skipped=frozenset(self.skipped),
        )
        try:
            if report is not None:
                async with asyncio.timeout(REPORT_TIMEOUT_SECONDS):
                    await run_in_helper(report)
        except (TimeoutError, EnvironmentFailed) as error:
            log.warning(
                "sync.not_reported",
                error=str(error) or f"took over {REPORT_TIMEOUT_SECONDS:.0f} s",
            )
            return
        self.dead_count = dead_count
        self.skipped.clear()

    def _apply(self, update: SyncUpdate, worker: Worker, is_reloaded: bool) -> None:
        """Let the worker follow what a sync found. Until its code is loaded again, it has the
        revision of before.
        """
        result, before = update.result, worker.workload.namespace
        if result.namespace not in (None, before):
            raise EnvironmentFailed(
                f'the namespace of {self.target.file} changed from "{before}" to'
                f' "{result.namespace}": restart the worker'
            )
        self.may_claim = result.may_claim
        self.skipped |= result.skipped
        if update.starts is not None and self.start_task is not None:
            self.start_task.follow(*update.starts)
        claims = update.claims
        if claims is not None and worker.registration is not None:
            worker.registration.cannot_start = claims.cannot_start
        if update.file is not None and claims is not None:
            self.file = file = update.file
            workload = replace(
                worker.workload,
                jobs=claims.jobs,
                scope=claims.scope,
                file=file.file,
                path=file.folders,
            )
            worker.reload(workload)
        elif claims is not None:
            revision = claims.scope.revision if is_reloaded else worker.workload.scope.revision
            scope = replace(claims.scope, revision=revision)
            if scope != worker.workload.scope:
                worker.workload = replace(worker.workload, scope=scope)
        self._pause(worker)

    def _pause(self, worker: Worker) -> None:
        """Let the worker claim if it may: not if the release of its jobs was deleted, and the file
        not read since.
        """
        worker.pause_claims(not self.may_claim or not worker.workload.file.parent.is_dir())

    def _sync(self) -> SyncUpdate:
        """Sync in another process: reading a large file would delay the renewal of leases."""
        with db.connect(self.dsn) as connection:
            try:
                schedule = replace(self.target.read_file(), syncs=self.syncs)
            except EnvironmentFailed as error:
                return self._sync_without_file(connection, str(error))
            snapshot = poll_database(connection, schedule, may_migrate=False)
            read = sync_if_needed if self.syncs else inspect
            result = read(connection, schedule, snapshot)
            file, claims = self._claimable(connection, schedule, result)
        if not result.is_readable:
            result.add_findings(CONTINUES_WITH_LAST_FILE)
        upkeeps, starts = result.may_claim and self.syncs, None
        if self.syncs and result.is_readable:
            context = StartContext.from_file(schedule, self.dsn, str(result.namespace))
            starts = (context, queue_starts(schedule, result))
        if upkeeps and not housekeep(self.dsn, str(result.namespace), snapshot, schedule):
            result.has_findings = True
        if upkeeps:
            notify(self.dsn, schedule, snapshot, result, sends=False)
        result.jobs = None  # those that the worker needs are in claims
        return SyncUpdate(snapshot.now, result, file, claims, starts)

    def _claimable(
        self, connection: Connection, schedule: ScheduleFile, result: SyncResult
    ) -> tuple[FollowedFile | None, Claimable | None]:
        """Return the file to follow, None if it is the same with the same claimable jobs, and the
        jobs to claim.

        A file that cannot be read changes nothing: the worker continues with the last one that
        could be.
        """
        if not result.may_claim or not result.is_readable:
            return None, None
        code = (schedule.real_file, schedule.folders)
        is_edited = schedule.sha256 != self.file.hash or result.changes is not None
        is_same = not is_edited and code == (self.file.file, self.file.folders)
        if is_same and result.jobs is None:
            result.jobs = dict(self.file.jobs)
        claims = claimable(connection, schedule, result, self.has_end)
        if is_same and claims.jobs.keys() == self.file.claimable:
            return None, claims._replace(jobs={})  # the worker has them
        names = frozenset(claims.jobs)
        return FollowedFile(schedule.sha256, result.jobs or {}, names, *code), claims

    def _sync_without_file(self, connection: Connection, error: str) -> SyncUpdate:
        """Create the runs of due slots although the file cannot be opened; the worker continues
        unchanged.
        """
        schedule = self.target.unreadable_file()
        result = SyncResult(self.namespace if self.may_claim else None)
        snapshot = hosts.poll(
            connection, schedule, None, self.namespace, writes=self.syncs, errors=[error]
        )
        result.add_findings(f"{error}; {CONTINUES_WITH_LAST_FILE}")
        if result.may_claim and self.syncs:
            account_for_due_slots(connection, result, snapshot, schedule.version)
        return SyncUpdate(snapshot.now, result)


def _until_next_minute(now: datetime) -> float:
    return SYNC_INTERVAL_SECONDS - now.timestamp() % SYNC_INTERVAL_SECONDS
