"""What monitoring services are to be told about the jobs of a worker, until it is sent.

Heartbeats are about a job: of several runs, one start and the worst end are reported. Services
limit how often one URL may be requested, so there is a pause between two reports. Check-ins of
Sentry are about a run, of a slot only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from yamlsched import log
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.monitors import targets
from yamlsched.extras.monitors.delivery import DEADLINE_SECONDS, Request, deliver
from yamlsched.plugins import WorkerTask
from yamlsched.runs.lifecycle import ClaimedRun, Status
from yamlsched.schedule.job import Job
from yamlsched.worker import clock
from yamlsched.worker.attempt import wait
from yamlsched.worker.sessions import run_in_helper
from yamlsched.worker.worker import Worker

HEARTBEAT_INTERVAL_SECONDS = 30.0  # of one job: healthchecks.io accepts five requests a minute
MAX_PENDING = 2_000  # requests, while a service does not answer
EXIT_CODE = re.compile(r"exit code ([1-9][0-9]{0,2})")


@dataclass(slots=True)
class HeartbeatState:
    """What the heartbeat of one job is to report, and when it may report a start and
    an end again.
    """

    has_started: bool = False
    end: str | None = None  # a state of targets.py
    start_due_at: float = 0.0
    end_due_at: float = 0.0

    def take(self, now: float | None) -> list[str]:
        """Return the states to report now, and forget them; all if ``now`` is None."""
        may_start = self.has_started and (now is None or now >= self.start_due_at)
        end = self.end if now is None or now >= self.end_due_at else None
        if may_start and now is not None:
            self.start_due_at = now + HEARTBEAT_INTERVAL_SECONDS
        if end is not None:
            self.end = None
            self.end_due_at = 0.0 if now is None else now + HEARTBEAT_INTERVAL_SECONDS
        if may_start or end is not None:
            self.has_started = False  # also one that may not be reported yet: its end may have been
        return [targets.START] * may_start + ([] if end is None else [end])

    def due_at(self) -> list[float]:
        return [self.start_due_at] * self.has_started + [self.end_due_at] * (self.end is not None)


class Outbox:
    """Collects what happens to runs; ``take`` returns what is to be sent now. ``jobs`` returns the
    worker's jobs.
    """

    def __init__(
        self,
        heartbeat_urls: Mapping[str, str],
        project: targets.Project | None,
        namespace: str,
        jobs: Callable[[], Mapping[str, Job]],
    ) -> None:
        self._urls, self._project, self._namespace, self._jobs = (
            heartbeat_urls,
            project,
            namespace,
            jobs,
        )
        self._states: dict[str, HeartbeatState] = {}  # by variable
        self._requests: deque[Request] = deque()
        self._dropped = 0
        self.has_news = asyncio.Event()

    def note_start(self, run: ClaimedRun) -> None:
        """An attempt of ``run`` has been handed to a child process."""
        if (state := self._state(run)) is not None:
            state.has_started = True
        self._check_in(run, "in_progress")

    def note_end(
        self, run: ClaimedRun, status: Status, seconds: float | None, error_type: str | None
    ) -> None:
        """Note a run that has succeeded or is dead; ``seconds`` is how long its last attempt
        executed.
        """
        if status not in (Status.SUCCEEDED, Status.DEAD):
            return
        is_success = status is Status.SUCCEEDED
        if (state := self._state(run)) is not None:
            code = EXIT_CODE.fullmatch(error_type or "")
            end = targets.SUCCESS if is_success else code[1] if code else targets.FAIL
            state.end = state.end or end  # a failure stays
        self._check_in(run, "ok" if is_success else "error", seconds)

    def _state(self, run: ClaimedRun) -> HeartbeatState | None:
        variable = targets.variable(run.job_type)
        if variable not in self._urls:
            return None
        self.has_news.set()
        return self._states.setdefault(variable, HeartbeatState())

    def _check_in(
        self, run: ClaimedRun, state: targets.State, seconds: float | None = None
    ) -> None:
        job = self._jobs().get(run.job_type)
        if self._project is None or run.scheduled_for is None or job is None or job.cron is None:
            return
        self._requests.extend(self._project.of_run(self._namespace, job, run, state, seconds))
        while len(self._requests) > MAX_PENDING:
            self._requests.popleft()
            self._dropped += 1
        self.has_news.set()

    def take(self, now: float | None) -> list[Request]:
        """Return what is to be sent now, and forget it; everything if ``now`` is None."""
        if self._dropped:
            log.warning("monitor.dropped", variable=targets.SENTRY_VARIABLE, requests=self._dropped)
            self._dropped = 0
        requests = list(self._requests)
        self._requests.clear()
        for variable, state in self._states.items():
            candidates = [
                targets.request(variable, self._urls[variable], each) for each in state.take(now)
            ]
            requests += [request for request in candidates if request is not None]
        self.has_news.clear()
        return requests

    def restore(self, requests: list[Request]) -> None:
        """Undo ``take``: perhaps none of ``requests`` was sent."""
        self._requests.extendleft(reversed(requests))

    def next_due_at(self) -> float | None:
        """Return when there is something to send that has to wait; None if there is nothing."""
        return min(
            (instant for state in self._states.values() for instant in state.due_at()), default=None
        )


HELPER_TIMEOUT_SECONDS = 20.0
MIN_INTERVAL_SECONDS = 1.0  # between two helper processes
# for which a worker that ends waits for one; the rest of the deadline is for what is left
LAST_HELPER_SECONDS = 1.0
MAX_WAIT_SECONDS = 3600.0


def listen(worker: Worker, environment: str | None) -> WorkerTask:
    """Collect what happens to the runs of ``worker``, and return what sends it meanwhile and at the
    end.
    """
    outbox = Outbox(
        targets.urls(os.environ),
        _project(environment),
        worker.workload.namespace,
        lambda: worker.workload.jobs,
    )
    worker.report.listeners.append(outbox)
    return partial(send_all, outbox)


def of_tick(
    environment: str | None, namespace: str | None, is_healthy: bool, skipped: Collection[str]
) -> list[Request]:
    """Return what reports a tick or a sync, and that all is well with jobs whose slots calendars
    have ``skipped``.

    Without a namespace, Sentry is not told: its monitors are unknown.
    """
    urls, project = targets.urls(os.environ), _project(environment)
    states = {targets.variable(job): targets.SUCCESS for job in skipped}
    states[targets.HEARTBEAT_VARIABLE] = targets.SUCCESS if is_healthy else targets.FAIL
    requests = [
        targets.request(each, urls[each], state) for each, state in states.items() if each in urls
    ]
    if namespace is not None and project is not None:
        slugs = [targets.monitor_slug(namespace, job) for job in skipped]
        requests += [project.check_in(uuid.uuid4().hex, slug, "ok", None) for slug in slugs]
        requests.append(project.of_tick(namespace, is_healthy))
    return [request for request in requests if request is not None]


def _project(environment: str | None) -> targets.Project | None:
    dsn = os.environ.get(targets.SENTRY_VARIABLE, "").strip()
    return targets.Project.of(dsn, environment) if dsn else None


def report_tick(*tick: Any) -> None:
    """Send what ``of_tick`` returns; see ``deliver``."""
    deliver(of_tick(*tick), DEADLINE_SECONDS - LAST_HELPER_SECONDS)


async def send_all(outbox: Outbox, worker: Worker) -> None:
    """Send what the outbox has as it comes, and what is left when the worker ends."""
    try:
        await send_continually(outbox)
    finally:
        await send_in_helper(outbox.take(None), DEADLINE_SECONDS - LAST_HELPER_SECONDS)


async def send_continually(outbox: Outbox) -> None:
    """Send what the outbox has as it comes, until cancelled. What may not have been sent is in the
    outbox again.
    """
    while True:
        due_at = outbox.next_due_at()
        await wait(
            outbox.has_news, MAX_WAIT_SECONDS if due_at is None else max(0.0, due_at - clock.now())
        )
        if requests := outbox.take(clock.now()):
            helper = asyncio.create_task(send_in_helper(requests))
            is_sent = False
            try:
                is_sent = await asyncio.shield(helper)
            except asyncio.CancelledError:
                # requests are not to be sent twice only because an answer is on its way
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_HELPER_SECONDS):
                        is_sent = await helper
                raise
            finally:
                if not is_sent:
                    outbox.restore(requests)
        await asyncio.sleep(MIN_INTERVAL_SECONDS)


async def send_in_helper(requests: Sequence[Request], seconds: float | None = None) -> bool:
    """Send ``requests`` from another process, and return whether it did its work: the worker's own
    loop never waits.
    """
    if not requests:
        return True
    try:
        async with asyncio.timeout(HELPER_TIMEOUT_SECONDS):
            await run_in_helper(partial(deliver, requests, seconds))
    except (TimeoutError, EnvironmentFailed) as error:
        log.warning(
            "monitor.failed", error=str(error) or f"took over {HELPER_TIMEOUT_SECONDS:.0f} s"
        )
        return False
    return True
