"""One HTTP request, with its failures told apart by what a retry would do about them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from yamlsched import Discard, RetryAfter

TIMEOUT = 10  # seconds without a byte
WORTH_A_RETRY = {408, 409, 425, 429}  # besides all of 5xx; any other 4xx says the same tomorrow


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow none: the first server has accepted the request, so an error of the second one would prove nothing."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects)


def call(method: str, url: str, body: Any = None, key: str = "") -> tuple[int, bytes]:
    """Send ``body`` as JSON, with ``key`` as ``Idempotency-Key``; return the status and the content of the answer.

    Raises Discard when the server refuses for good or redirects, RetryAfter when it says when to come back. Whatever
    else is raised (no connection, a timeout, 5xx) is retried by the job's backoff.
    """
    if not url.startswith(("http://", "https://")):
        raise Discard(f'"{url}" is not an http or https address')
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with OPENER.open(request, timeout=TIMEOUT) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            wait = error.headers.get("Retry-After", "")
            if error.code in (429, 503) and wait.isdecimal():
                raise RetryAfter(int(wait), f"the server asks to come back after {wait} seconds") from error
            if error.code < 500 and error.code not in WORTH_A_RETRY:
                raise Discard(f"the server refuses: {error.code} {error.reason}") from error
            raise
