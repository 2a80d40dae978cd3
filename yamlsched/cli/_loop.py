"""How ``work --loop`` stays in step with its file: a sync each minute, in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import log, store
from yamlsched.cli._settings import Settings
from yamlsched.cli._work import housekeep, poll_ready, read_schedule, send_heartbeats, show_messages, sync_if_needed
from yamlsched.errors import EnvironmentFailed, YamlschedError
from yamlsched.runs import Status
from yamlsched.store import runs
from yamlsched.store.connection import reason
from yamlsched.sync import ScheduleFile, SyncResult, account_for_due_slots, claimable_jobs
from yamlsched.sync.flow import MAX_SYNC_SECONDS
from yamlsched.worker import clock
from yamlsched.worker.helper_process import run_in_helper
from yamlsched.worker.worker import Worker, wait

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.store.runs import Scope

MAX_LOOP_SYNC_SECONDS = 300.0  # seconds that a sync may take
MAX_HEARTBEAT_SECONDS = 20.0  # seconds that heartbeats may take
CONTINUES_WITH_LAST_FILE = "until it is fixed, the jobs of the last readable file are run"


@dataclass(frozen=True)
class SyncUpdate:
    """What a sync found. ``jobs`` and ``scope`` are None where they are as they were; ``valid`` are all of the file."""

    now: datetime
    hash: str | None
    namespace: str | None
    messages: list[str]
    jobs: dict[str, Job] | None
    valid: Mapping[str, Job]
    scope: Scope | None
    may_claim: bool
    has_findings: bool


@dataclass
class SyncTask:
    """Syncs at each minute of the database's clock, and at once on SIGHUP, which also renews the children."""

    settings: Settings
    options: Mapping[str, Any]
    dsn: str
    namespace: str
    hash: str | None  # of the file that the worker's jobs are from
    jobs: Mapping[str, Job]  # of that file, also those that the worker may not claim
    names: frozenset[str]  # of those that it may claim
    now: datetime  # the database's, a moment ago
    may_claim: bool = True  # by the latest sync that could read the file: it is not another environment's

    async def run(self, worker: Worker) -> None:
        """Sync until the worker ends. A sync that fails is reported, and tried again the next minute."""
        hangup = asyncio.Event()
        is_hangup = False

        def on_hangup() -> None:
            nonlocal is_hangup
            is_hangup = True
            hangup.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        shown_messages: list[str] = []
        next_at = clock.now() + 60 - self.now.timestamp() % 60
        while True:
            await wait(hangup, max(0.0, next_at - clock.now()))
            if is_hangup:
                log.info("worker.reloading")
                worker.pool.retire()
            is_hangup = False
            started = clock.now()
            try:
                async with asyncio.timeout(MAX_LOOP_SYNC_SECONDS):
                    update = await run_in_helper(self._sync)
            except (YamlschedError, psycopg.Error, TimeoutError) as error:
                text = (
                    reason(error)
                    if isinstance(error, psycopg.Error)
                    else str(error) or f"took over {MAX_LOOP_SYNC_SECONDS:.0f} s"
                )
                log.warning("sync.failed", error=text)
                next_at = started + 60
                await self._send_heartbeats(worker, is_well=False)
                continue
            next_at = clock.now() + 60 - update.now.timestamp() % 60
            show_messages(update.messages if update.messages != shown_messages else [])
            shown_messages = update.messages
            self._apply(update, worker)
            await self._send_heartbeats(worker, is_well=not update.has_findings)

    async def _send_heartbeats(self, worker: Worker, is_well: bool) -> None:
        """Send the heartbeats of the minute that is over. If that is cut short, the next ones report its outcomes."""
        outcomes = worker.report.take_jobs()
        is_well = is_well and Status.DEAD not in outcomes.values()
        try:
            async with asyncio.timeout(MAX_HEARTBEAT_SECONDS):
                await run_in_helper(partial(send_heartbeats, outcomes, is_well))
        except BaseException as error:
            worker.report.restore_jobs(outcomes)
            if not isinstance(error, (TimeoutError, EnvironmentFailed)):
                raise
            log.warning("heartbeat.failed", error=str(error) or f"took over {MAX_HEARTBEAT_SECONDS:.0f} s")

    def _apply(self, update: SyncUpdate, worker: Worker) -> None:
        """Let the worker follow what a sync found."""
        if update.namespace not in (None, worker.work.namespace):
            raise EnvironmentFailed(
                f'the namespace of {self.settings.file} changed from "{worker.work.namespace}" to '
                f'"{update.namespace}": restart the worker'
            )
        self.may_claim = update.may_claim
        worker.pause_claims(not update.may_claim)
        if update.jobs is not None and update.scope is not None:
            self.hash, self.jobs, self.names = update.hash, update.valid, frozenset(update.jobs)
            worker.reload(update.jobs, update.scope)
        elif update.scope is not None and update.scope != worker.work.scope:
            worker.work = replace(worker.work, scope=update.scope)

    def _sync(self) -> SyncUpdate:
        """Sync, in a process of its own: reading a large file would keep leases from being renewed."""
        with store.connect(self.dsn) as connection:
            try:
                schedule = read_schedule(self.settings, self.options)
            except EnvironmentFailed as error:
                return self._sync_without_file(connection, str(error))
            snapshot = poll_ready(connection, schedule, migrate=False)
            result = sync_if_needed(connection, schedule, snapshot)
            if result.namespace is None:
                result.namespace = self.namespace
                self._make_due(connection, result)
            jobs, scope = self._jobs(connection, schedule, result)
        if not result.is_readable:
            result.find(CONTINUES_WITH_LAST_FILE)
        is_well = housekeep(self.dsn, result.namespace if result.may_claim else None, snapshot)
        has_findings = result.has_findings or not is_well
        valid = result.jobs if jobs is not None and result.jobs is not None else self.jobs
        return SyncUpdate(
            snapshot.now,
            schedule.sha256,
            result.namespace,
            result.messages,
            jobs,
            valid,
            scope,
            result.may_claim,
            has_findings,
        )

    def _jobs(
        self, connection: Connection[Any], schedule: ScheduleFile, result: SyncResult
    ) -> tuple[dict[str, Job] | None, Scope | None]:
        """Return the jobs that the worker may claim, if they are others now, and their scope.

        A file that cannot be read leaves the jobs as they are: those of the last one that could be.
        """
        if not result.may_claim or not result.is_readable:
            return None, None
        is_same = schedule.sha256 == self.hash and result.changes is None
        if is_same and result.jobs is None:
            result.jobs = dict(self.jobs)
        jobs = claimable_jobs(connection, schedule, result)
        scope = runs.scope(connection, str(result.namespace), jobs)
        return None if is_same and jobs.keys() == self.names else jobs, scope

    def _sync_without_file(self, connection: Connection[Any], error: str) -> SyncUpdate:
        """Make the runs of due slots though the file cannot be opened; the worker goes on as it did."""
        result = SyncResult(self.namespace)
        result.find(f"{error}; {CONTINUES_WITH_LAST_FILE}")
        if self.may_claim:
            self._make_due(connection, result)
        return SyncUpdate(self.now, self.hash, None, result.messages, None, self.jobs, None, self.may_claim, True)

    def _make_due(self, connection: Connection[Any], result: SyncResult) -> None:
        import tzdata  # type: ignore[import-untyped]

        account_for_due_slots(connection, result, tzdata.IANA_VERSION, None, time.monotonic() + MAX_SYNC_SECONDS)
