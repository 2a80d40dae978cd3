"""Heartbeats for a dead man's switch: a GET of a URL after a success, and of URL/fail after a failure.

The URLs are secrets: log lines name the variable, never a part of the URL.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.client import HTTPException

from yamlsched import log

VARIABLE = "YAMLSCHED_HEARTBEAT_URL"
DEADLINE_SECONDS = 5.0
"""For all heartbeats of a tick together, however slowly their servers answer."""
MAX_THREADS = 16
NO_ERROR = ""


def variable(job: str) -> str:
    """Return the name of the variable that holds a job's URL.

    >>> variable("billing.close-month")
    'YAMLSCHED_HEARTBEAT_URL_BILLING_CLOSE_MONTH'
    """
    return f"{VARIABLE}_{re.sub('[^A-Z0-9]', '_', job.upper())}"


def send(environ: Mapping[str, str], is_healthy: bool | None, jobs: Mapping[str, bool]) -> None:
    """Report a tick, unless ``is_healthy`` is None, and ``jobs``: true after a success, false if a run died.

    Only what has a URL in ``environ`` is reported. Never raises, and returns within ``DEADLINE_SECONDS``: a monitor
    that is down or slow delays no work.
    """
    beats = [(VARIABLE, is_healthy)] if is_healthy is not None else []
    beats += [(variable(job), succeeded) for job, succeeded in jobs.items()]
    wanted = [(name, environ[name].strip(), succeeded) for name, succeeded in beats if environ.get(name, "").strip()]
    # Daemon threads, for which the process does not wait at its end: the timeout of a socket applies to each read, and
    # a server that sends a byte now and then never exceeds it.
    todo = deque((name, url if succeeded else f"{url.rstrip('/')}/fail") for name, url, succeeded in wanted)
    errors: dict[str, str] = {}
    threads = [threading.Thread(target=_send_all, args=(todo, errors), daemon=True) for _ in wanted[:MAX_THREADS]]
    names = {name for name, _ in todo}
    deadline = time.monotonic() + DEADLINE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for name in names:
        if (error := errors.get(name, f"no answer within {DEADLINE_SECONDS:.0f} s")) != NO_ERROR:
            log.warning("heartbeat.failed", variable=name, error=error)


def _send_all(todo: deque[tuple[str, str]], errors: dict[str, str]) -> None:
    while todo:
        try:
            name, url = todo.popleft()
        except IndexError:
            return
        errors[name] = _get(url)


def _get(url: str) -> str:
    """Request ``url``; return ``NO_ERROR``, or an error that contains no part of the URL."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    if not re.fullmatch(r"https?://[^\s@\x00-\x20\x7f]+", url):
        return "not a valid http or https URL (without spaces, a user or a password)"
    try:
        with urlopen(url, timeout=DEADLINE_SECONDS):
            return NO_ERROR
    except HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        return (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__
