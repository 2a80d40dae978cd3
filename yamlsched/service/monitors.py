"""Telling monitoring services how jobs and ticks went: while a worker runs, from a helper process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from functools import partial

from yamlsched import log
from yamlsched.errors import EnvironmentFailed
from yamlsched.operations.monitors import heartbeat, sentry
from yamlsched.operations.monitors.delivery import DEADLINE_SECONDS, Request, deliver
from yamlsched.operations.monitors.outbox import Outbox
from yamlsched.worker import clock
from yamlsched.worker.events import wait
from yamlsched.worker.helper_process import run_in_helper
from yamlsched.worker.worker import Worker

HELPER_TIMEOUT_SECONDS = 20.0
MIN_INTERVAL_SECONDS = 1.0  # between two helper processes
LAST_HELPER_SECONDS = 1.0  # for which a worker that ends waits for one; the rest of the deadline is for what is left
MAX_WAIT_SECONDS = 3600.0


def outbox(environment: str | None, worker: Worker) -> Outbox:
    """Return an outbox for the jobs of ``worker``."""
    urls = heartbeat.urls(os.environ)
    return Outbox(urls, _project(environment), worker.workload.namespace, lambda: worker.workload.jobs)


def of_tick(environment: str | None, namespace: str | None, is_healthy: bool) -> list[Request]:
    """Return what reports a tick or a sync. Without a namespace, Sentry is not told: its monitor is unknown."""
    requests = []
    if url := heartbeat.urls(os.environ).get(heartbeat.VARIABLE):
        state = heartbeat.SUCCESS if is_healthy else heartbeat.FAIL
        requests.append(heartbeat.request(heartbeat.VARIABLE, url, state))
    if namespace is not None and (project := _project(environment)) is not None:
        requests.append(project.of_tick(namespace, is_healthy))
    return [request for request in requests if request is not None]


def _project(environment: str | None) -> sentry.Project | None:
    dsn = os.environ.get(sentry.VARIABLE, "").strip()
    return sentry.Project.of(dsn, environment) if dsn else None


def send(
    unsent: Sequence[Request], environment: str | None, namespace: str | None = None, is_healthy: bool | None = None
) -> None:
    """Send ``unsent``, and how a tick went unless ``is_healthy`` is None; see ``deliver``."""
    requests = [*unsent, *([] if is_healthy is None else of_tick(environment, namespace, is_healthy))]
    deliver(requests, DEADLINE_SECONDS - LAST_HELPER_SECONDS)


async def send_continually(outbox: Outbox, worker: Worker) -> None:
    """Send what the outbox has as it comes, until cancelled. What may not have been sent is in the outbox again."""
    while True:
        due_at = outbox.next_due_at()
        await wait(outbox.has_news, MAX_WAIT_SECONDS if due_at is None else max(0.0, due_at - clock.now()))
        if requests := outbox.take(clock.now()):
            helper = asyncio.create_task(send_in_helper(requests))
            is_sent = False
            try:
                is_sent = await asyncio.shield(helper)
            except asyncio.CancelledError:
                # requests are not to be sent twice only because an answer is on its way
                with contextlib.suppress(TimeoutError):
                    is_sent = await asyncio.wait_for(helper, LAST_HELPER_SECONDS)
                raise
            finally:
                if not is_sent:
                    outbox.restore(requests)
        await asyncio.sleep(MIN_INTERVAL_SECONDS)


async def send_in_helper(requests: Sequence[Request]) -> bool:
    """Send ``requests`` from another process, and return whether it did its work: the worker's own loop never waits."""
    if not requests:
        return True
    try:
        async with asyncio.timeout(HELPER_TIMEOUT_SECONDS):
            await run_in_helper(partial(deliver, requests))
    except (TimeoutError, EnvironmentFailed) as error:
        log.warning("monitor.failed", error=str(error) or f"took over {HELPER_TIMEOUT_SECONDS:.0f} s")
        return False
    return True
