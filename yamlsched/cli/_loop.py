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
from yamlsched.cli._work import housekeep, look, read_schedule, show_messages, synced, tell
from yamlsched.errors import EnvironmentFailed, YamlschedError
from yamlsched.runs import Status
from yamlsched.store import runs
from yamlsched.store.connection import reason
from yamlsched.sync import MAX_SECONDS, ScheduleFile, Synced, claimable_jobs, make_due
from yamlsched.worker import clock
from yamlsched.worker.helper_process import run_in_helper
from yamlsched.worker.worker import Worker, wait

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.store.runs import Scope

LONGEST = 300.0  # seconds that a sync may take
LONGEST_TELLING = 20.0  # seconds that heartbeats may take
GOES_ON = "until it is fixed, the jobs of the last readable file are run"


@dataclass(frozen=True)
class News:
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
class Syncing:
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

    async def keep(self, worker: Worker) -> None:
        """Sync until the worker ends. A sync that fails is told, and tried again the next minute."""
        hang_up = asyncio.Event()
        is_hang_up = False

        def on_hang_up() -> None:
            nonlocal is_hang_up
            is_hang_up = True
            hang_up.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hang_up)
        told: list[str] = []
        next_at = clock.now() + 60 - self.now.timestamp() % 60
        while True:
            await wait(hang_up, max(0.0, next_at - clock.now()))
            if is_hang_up:
                log.info("worker.reloading")
                worker.pool.retire()
            is_hang_up = False
            begun = clock.now()
            try:
                async with asyncio.timeout(LONGEST):
                    news = await run_in_helper(self._sync)
            except (YamlschedError, psycopg.Error, TimeoutError) as error:
                text = reason(error) if isinstance(error, psycopg.Error) else str(error) or f"took over {LONGEST:.0f} s"
                log.warning("sync.failed", error=text)
                next_at = begun + 60
                await self._tell(worker, is_well=False)
                continue
            next_at = clock.now() + 60 - news.now.timestamp() % 60
            show_messages(news.messages if news.messages != told else [])
            told = news.messages
            self._take(news, worker)
            await self._tell(worker, is_well=not news.has_findings)

    async def _tell(self, worker: Worker, is_well: bool) -> None:
        """Send the heartbeats of the minute that is over. Where that is cut short, its outcomes are told again."""
        outcomes = worker.report.take_jobs()
        is_well = is_well and Status.DEAD not in outcomes.values()
        try:
            async with asyncio.timeout(LONGEST_TELLING):
                await run_in_helper(partial(tell, outcomes, is_well))
        except BaseException as error:
            worker.report.restore_jobs(outcomes)
            if not isinstance(error, (TimeoutError, EnvironmentFailed)):
                raise
            log.warning("heartbeat.failed", error=str(error) or f"took over {LONGEST_TELLING:.0f} s")

    def _take(self, news: News, worker: Worker) -> None:
        """Let the worker follow what a sync found."""
        if news.namespace not in (None, worker.work.namespace):
            raise EnvironmentFailed(
                f'the namespace of {self.settings.file} changed from "{worker.work.namespace}" to '
                f'"{news.namespace}": restart the worker'
            )
        self.may_claim = news.may_claim
        worker.pause_claims(not news.may_claim)
        if news.jobs is not None and news.scope is not None:
            self.hash, self.jobs, self.names = news.hash, news.valid, frozenset(news.jobs)
            worker.reload(news.jobs, news.scope)
        elif news.scope is not None and news.scope != worker.work.scope:
            worker.work = replace(worker.work, scope=news.scope)

    def _sync(self) -> News:
        """Sync, in a process of its own: reading a large file would keep leases from being renewed."""
        with store.connect(self.dsn) as connection:
            try:
                schedule = read_schedule(self.settings, self.options)
            except EnvironmentFailed as error:
                return self._sync_without_file(connection, str(error))
            seen = look(connection, schedule, migrate=False)
            result = synced(connection, schedule, seen)
            if result.namespace is None:
                result.namespace = self.namespace
                self._make_due(connection, result)
            jobs, scope = self._jobs(connection, schedule, result)
        if not result.is_readable:
            result.find(GOES_ON)
        is_well = housekeep(self.dsn, result.namespace if result.may_claim else None, seen)
        has_findings = result.has_findings or not is_well
        valid = result.jobs if jobs is not None and result.jobs is not None else self.jobs
        return News(
            seen.now,
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
        self, connection: Connection[Any], schedule: ScheduleFile, result: Synced
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

    def _sync_without_file(self, connection: Connection[Any], error: str) -> News:
        """Make the runs of due slots though the file cannot be opened; the worker goes on as it did."""
        result = Synced(self.namespace)
        result.find(f"{error}; {GOES_ON}")
        if self.may_claim:
            self._make_due(connection, result)
        return News(self.now, self.hash, None, result.messages, None, self.jobs, None, self.may_claim, True)

    def _make_due(self, connection: Connection[Any], result: Synced) -> None:
        import tzdata  # type: ignore[import-untyped]

        make_due(connection, result, tzdata.IANA_VERSION, None, time.monotonic() + MAX_SECONDS)
