"""Heartbeat URLs, as healthchecks.io provides them: what is requested at a start, a success and a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from yamlsched.operations.monitors.delivery import BAD_URL, Request

VARIABLE = "YAMLSCHED_HEARTBEAT_URL"
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
    return f"{VARIABLE}_{re.sub('[^A-Z0-9]', '_', job.upper())}"


def urls(environ: Mapping[str, str]) -> dict[str, str]:
    """Return, by their variables, the heartbeat URLs that ``environ`` has."""
    return {name: url.strip() for name, url in environ.items() if name.startswith(VARIABLE) and url.strip()}


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
        return Request(
            variable, urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, query))))), variable
        )
    if state == START and _is_of(host, WITHOUT_START):
        return None
    if state != SUCCESS:
        url = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{state}"))
    return Request(variable, url, variable)


def _is_of(host: str, domains: tuple[str, ...]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
