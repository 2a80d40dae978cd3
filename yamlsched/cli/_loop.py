"""How ``work --loop`` stays in step with its file: a sync each minute, in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import log, store
from yamlsched.cli._settings import Settings
from yamlsched.cli._work import housekeep, look, sound_jobs, tell
from yamlsched.errors import EnvironmentFailed, YamlschedError
from yamlsched.runs import Status
from yamlsched.store.connection import reason
from yamlsched.sync import ScheduleFile, is_current, sync
from yamlsched.worker import clock
from yamlsched.worker.aside import aside
from yamlsched.worker.worker import Worker, wait

if TYPE_CHECKING:
    from yamlsched.definitions.job import Job
    from yamlsched.store.runs import Scope

LONGEST = 300.0  # seconds that a sync may take
LONGEST_TELLING = 20.0  # seconds that heartbeats may take


@dataclass(frozen=True)
class News:
    """What a sync found. ``jobs`` and ``scope`` are None where they are as they were."""

    now: datetime
    hash: str
    namespace: str | None
    messages: list[str]
    jobs: dict[str, Job] | None
    scope: Scope | None
    has_findings: bool


@dataclass
class Syncing:
    """Syncs at each minute of the database's clock, and at once on SIGHUP, which also renews the children."""

    settings: Settings
    dsn: str
    hash: str  # of the file that the worker's jobs are from
    now: datetime  # the database's, a moment ago

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
                    news = await aside(self._sync)
            except (YamlschedError, psycopg.Error, TimeoutError) as error:
                text = reason(error) if isinstance(error, psycopg.Error) else str(error) or f"took over {LONGEST:.0f} s"
                log.warning("sync.failed", error=text)
                next_at = begun + 60
                await self._tell(worker, is_well=False)
                continue
            next_at = clock.now() + 60 - news.now.timestamp() % 60
            for message in news.messages if news.messages != told else []:
                print(message, file=sys.stderr)
            told = news.messages
            self._take(news, worker)
            await self._tell(worker, is_well=not news.has_findings)

    async def _tell(self, worker: Worker, is_well: bool) -> None:
        """Send the heartbeats of the minute that is over. Where that is cut short, its outcomes are told again."""
        outcomes = worker.tally.take_jobs()
        is_well = is_well and Status.DEAD not in outcomes.values()
        try:
            async with asyncio.timeout(LONGEST_TELLING):
                await aside(partial(tell, outcomes, is_well))
        except BaseException as error:
            worker.tally.give_back_jobs(outcomes)
            if not isinstance(error, (TimeoutError, EnvironmentFailed)):
                raise
            log.warning("heartbeat.failed", error=str(error) or f"took over {LONGEST_TELLING:.0f} s")

    def _take(self, news: News, worker: Worker) -> None:
        if news.namespace not in (None, worker.work.namespace):
            raise EnvironmentFailed(
                f'the namespace of {self.settings.file} is "{news.namespace}" now, and was "{worker.work.namespace}": '
                "start anew"
            )
        if news.jobs is not None and news.scope is not None:
            self.hash = news.hash
            worker.reload(news.jobs, news.scope)

    def _sync(self) -> News:
        """Sync, in a process of its own: reading a large file would keep leases from being renewed."""
        schedule = ScheduleFile.read(self.settings.file, self.settings.env)
        with store.connect(self.dsn) as connection:
            seen = look(connection, schedule, migrate=False)
            result = None
            if not is_current(seen, schedule) or seen.has_due_jobs:
                result = sync(connection, schedule, seen=seen)
            namespace = seen.namespace if result is None else result.namespace
            housekeep(connection, namespace, seen)
            jobs: dict[str, Any] | None = None
            scope = None
            is_new = schedule.sha256 != self.hash or (result is not None and result.changes is not None)
            if namespace is not None and is_new:
                from yamlsched.store import runs

                jobs = sound_jobs(schedule, result, seen)
                scope = runs.scope(connection, namespace, jobs)
            messages = [] if result is None else result.messages
            has_findings = result is not None and result.has_findings
            return News(seen.now, schedule.sha256, namespace, messages, jobs, scope, has_findings)
