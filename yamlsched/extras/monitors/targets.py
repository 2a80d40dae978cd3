"""Heartbeat URLs, and Sentry's cron monitors: check-ins by plain HTTP, without Sentry's SDK.

Each check-in carries the configuration of its monitor, which Sentry creates or updates: so it knows
when to expect the next one, and reports a slot that is missed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from yamlsched.extras.monitors.delivery import BAD_URL, Request
from yamlsched.runs.backoff import delay
from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.schedule.job import Job
from yamlsched.timetable.cron import Cron
from yamlsched.timetable.cron_fields import DAY_OF_MONTH, is_computed
from yamlsched.timetable.slots import MINUTE, slots
from yamlsched.timetable.zones import zone

SENTRY_VARIABLE = "YAMLSCHED_SENTRY_DSN"
DSN = re.compile(
    r"(https?://)([A-Za-z0-9_-]+)(?::[A-Za-z0-9_-]*)?"
    r"@([^\s@/?#\x00-\x20]+(?:/[^\s@/?#]+)*)/([A-Za-z0-9_-]+)/?"
)
BAD_DSN = "not a valid Sentry DSN, such as https://KEY@HOST/PROJECT"
DEFAULT_ENVIRONMENT = "production"
MAX_SLUG_CHARS = 50
MAX_MINUTES = 40_320
"""Sentry's limit, 28 days, for both spans of a monitor."""
MARGIN = timedelta(minutes=5)
"""For which Sentry waits for the first check-in of a slot: a tick comes each minute, and may find
all permits taken.
"""
IDS = uuid.UUID("6f9c2a54-6f0b-4d3c-9d58-3a1f0a4c7f11")

State = Literal["in_progress", "ok", "error"]


@dataclass(frozen=True)
class Project:
    """Where check-ins go. ``error``: why nothing can be sent."""

    url: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    environment: str = DEFAULT_ENVIRONMENT
    error: str = ""

    @classmethod
    def of(cls, dsn: str, environment: str | None) -> Project:
        """Return the project of a DSN: scheme://key@host/path/project."""
        match = DSN.fullmatch(dsn)
        if match is None:
            return cls(error=BAD_DSN)
        scheme, key, host, project = match.groups()
        host, _, path = host.partition("/")
        return cls(
            f"{scheme}{host}/{path and path + '/'}api/{project}/envelope/",
            key,
            environment or DEFAULT_ENVIRONMENT,
        )

    def check_in(
        self,
        check_in_id: str,
        slug: str,
        state: State,
        config: dict[str, Any] | None,
        seconds: float | None = None,
    ) -> Request:
        """Return the request of one check-in."""
        item: dict[str, Any] = {
            "monitor_config": config,
            "duration": None if seconds is None else round(seconds, 3),
        }
        item = {name: value for name, value in item.items() if value is not None}
        item |= {
            "check_in_id": check_in_id,
            "monitor_slug": slug,
            "status": state,
            "environment": self.environment,
        }
        envelope = "\n".join(map(json.dumps, ({}, {"type": "check_in"}, item))) + "\n"
        auth = f"Sentry sentry_version=7, sentry_client=yamlsched, sentry_key={self.key}"
        headers = {"Content-Type": "application/x-sentry-envelope", "X-Sentry-Auth": auth}
        return Request(
            SENTRY_VARIABLE,
            self.url,
            f"sentry:{check_in_id}",
            envelope.encode(),
            headers,
            self.error,
        )

    def of_run(
        self, namespace: str, job: Job, run: ClaimedRun, state: State, seconds: float | None = None
    ) -> Iterator[Request]:
        """Yield the check-ins of a run of a slot. All attempts of a run have one id, until an
        operator retries it.
        """
        for name, config in monitors(job, datetime.fromisoformat(run.scheduled_for or "")):
            slug = monitor_slug(namespace, name)
            seed = json.dumps((self.environment, slug, run.id, run.key, run.prior_attempts))
            yield self.check_in(uuid.uuid5(IDS, seed).hex, slug, state, config, seconds)

    def of_tick(self, namespace: str, is_healthy: bool) -> Request:
        """Return the check-in of one tick or sync, of any host of the namespace."""
        config = _config("* * * * *", "UTC", MARGIN, MARGIN)
        return self.check_in(
            uuid.uuid4().hex, tick_slug(namespace), "ok" if is_healthy else "error", config
        )


def monitor_slug(namespace: str, job: str) -> str:
    """Return the slug of a job's monitor. Names have no hyphens, so that no two jobs share one.

    >>> monitor_slug("default", "cleanup_nightly"), monitor_slug("billing", "close_month")
    ('cleanup_nightly', 'billing-close_month')
    """
    return _bounded(job if namespace == "default" else f"{namespace}-{job}")


def tick_slug(namespace: str) -> str:
    """Return the slug of the monitor of ticks.

    >>> tick_slug("default")
    'tick-of-default'
    """
    return _bounded(f"tick-of-{namespace}")


def _bounded(slug: str) -> str:
    if len(slug) <= MAX_SLUG_CHARS:
        return slug
    digest = hashlib.sha256(slug.encode()).hexdigest()[:10]
    return f"{slug[: MAX_SLUG_CHARS - 11]}-{digest}"


def monitors(job: Job, slot: datetime) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield name and configuration of the monitor of each expression that fires at ``slot``; each
    has one schedule.

    Without a configuration somebody has to create the monitor in Sentry. A follower has none,
    because its runs start when others have succeeded; nor have several expressions with calendars,
    because what these skip is reported by job; nor what Sentry's crontab cannot say.
    """
    crons = job.cron.expressions if job.cron else ()
    is_odd = any(cron.every > 1 or is_computed(cron.fields[DAY_OF_MONTH]) for cron in crons)
    if job.after or is_odd or (len(crons) > 1 and (job.skip_on or job.only_on)):
        yield job.name, None
        return
    for nth, cron in enumerate(crons, 1):
        if len(crons) == 1 or any(slots(cron, zone(job.timezone), slot - MINUTE, slot)):
            yield job.name if nth == 1 else f"{job.name}-{nth}", monitor_config(job, cron)


def monitor_config(job: Job, cron: Cron) -> dict[str, Any]:
    """Return when Sentry expects check-ins of ``job`` for one of its expressions, and how long
    after one the next.

    The start of each attempt is a check-in: the time between two is at most one attempt, its
    backoff, and a lost lease.
    """
    pauses = [delay(job.backoff, attempt, random=0.0) for attempt in range(1, job.max_attempts)]
    max_runtime = job.timeout + max(pauses, default=timedelta(0)) + job.lease + MARGIN
    return _config(cron.expression, job.timezone, MARGIN + job.spread, max_runtime)


def _config(cron: str, timezone: str, margin: timedelta, max_runtime: timedelta) -> dict[str, Any]:
    return {
        "schedule": {"type": "crontab", "value": cron},
        "timezone": timezone,
        "checkin_margin": _minutes(margin),
        "max_runtime": _minutes(max_runtime),
    }


def _minutes(span: timedelta) -> int:
    return min(math.ceil(span / timedelta(minutes=1)), MAX_MINUTES)


HEARTBEAT_VARIABLE = "YAMLSCHED_HEARTBEAT_URL"
CRONITOR = ("cronitor.link", "cronitor.io")
"""Its URLs take the state as a parameter."""
WITHOUT_START = ("betterstack.com", "betteruptime.com")
"""Services that take failures, but reject /start."""
START, SUCCESS, FAIL = "start", "", "fail"
"""The states of a heartbeat. The exit code of a command, such as "3", is a failure."""
CRONITOR_STATES = {START: "run", SUCCESS: "complete"}


def variable(job: str) -> str:
    """Return the name of the variable that holds a job's URL.

    >>> variable("billing.close-month")
    'YAMLSCHED_HEARTBEAT_URL_BILLING_CLOSE_MONTH'
    """
    return f"{HEARTBEAT_VARIABLE}_{re.sub('[^A-Z0-9]', '_', job.upper())}"


def urls(environ: Mapping[str, str]) -> dict[str, str]:
    """Return, by their variables, the heartbeat URLs that ``environ`` has."""
    return {
        name: url.strip()
        for name, url in environ.items()
        if name.startswith(HEARTBEAT_VARIABLE) and url.strip()
    }


def request(variable: str, url: str, state: str) -> Request | None:
    """Return the request that reports ``state``; None if the service has no such state."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return Request(variable, url, variable, error=BAD_URL)
    if _is_of(host, CRONITOR):
        query = f"state={CRONITOR_STATES.get(state, 'fail')}"
        if state.isdigit():
            query += f"&status_code={state}"
        url = urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, query)))))
        return Request(variable, url, variable)
    if state == START and _is_of(host, WITHOUT_START):
        return None
    if state != SUCCESS:
        url = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{state}"))
    return Request(variable, url, variable)


def _is_of(host: str, domains: tuple[str, ...]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
