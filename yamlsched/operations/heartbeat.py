"""Signs of life for a dead man's switch elsewhere: a GET of a URL, and of URL/fail after trouble.

The URLs are secrets of a kind, so log lines name the variable and never the URL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import HTTPException

from yamlsched import log

VARIABLE = "YAMLSCHED_HEARTBEAT_URL"
TIMEOUT = 5.0
"""Seconds for connecting, and for an answer."""
AT_ONCE = 16


def variable(job: str) -> str:
    """Return the name of the variable that holds a job's URL.

    >>> variable("billing.close-month")
    'YAMLSCHED_HEARTBEAT_URL_BILLING_CLOSE_MONTH'
    """
    return f"{VARIABLE}_{re.sub('[^A-Z0-9]', '_', job.upper())}"


def send(environ: Mapping[str, str], all_is_well: bool | None, jobs: Mapping[str, bool]) -> None:
    """Tell of a tick, unless ``all_is_well`` is None, and of jobs: true after a success, false after a death.

    What has no URL in ``environ`` is not told. Never raises: a monitor that is down stops no work.
    """
    signs = [(VARIABLE, all_is_well)] if all_is_well is not None else []
    signs += [(variable(job), is_well) for job, is_well in jobs.items()]
    wanted = [(name, environ[name], is_well) for name, is_well in signs if environ.get(name)]
    if wanted:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for name, url, is_well in wanted:
                threads.submit(_get, name, url if is_well else f"{url.rstrip('/')}/fail")


def _get(name: str, url: str) -> None:
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=TIMEOUT):
            pass
    except (OSError, ValueError, HTTPException) as error:
        what = str(error).replace(url, "the URL") or type(error).__name__
        log.warning("heartbeat.failed", variable=name, error=what)
