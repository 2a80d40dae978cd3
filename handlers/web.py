"""One HTTP request. Its exceptions distinguish failures that a retry can fix from those that it cannot."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from yamlsched import Discard, RetryAfter

TIMEOUT_SECONDS = 10  # without receiving a byte
RETRYABLE_STATUSES = {408, 409, 425, 429}  # in addition to all 5xx


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: the first server has accepted the request, so an error of the second proves nothing."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects)


def call(method: str, url: str, body: Any = None, key: str = "") -> tuple[int, bytes]:
    """Send ``body`` as JSON, with ``key`` as ``Idempotency-Key``; return status and content of the response.

    Raises Discard if the server refuses permanently or redirects, and RetryAfter if it says when to retry. Other
    exceptions (no connection, a timeout, 5xx) are retried by the job's backoff.
    """
    if not url.startswith(("http://", "https://")):
        raise Discard(f'"{url}" is not an http or https URL')
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            wait = error.headers.get("Retry-After", "")
            if error.code in (429, 503) and wait.isdecimal():
                raise RetryAfter(
                    int(wait), f"the server asks to retry after {wait} seconds"
                ) from error
            if error.code < 500 and error.code not in RETRYABLE_STATUSES:
                raise Discard(
                    f"the server refused the request: {error.code} {error.reason}"
                ) from error
            raise
