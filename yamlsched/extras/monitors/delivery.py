"""Sending requests to monitoring services, within a deadline however slowly these answer.

URLs and headers are secrets: log lines name the variable that they come from, never a part of them.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import IO, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, build_opener
from urllib.request import Request as HttpRequest

from yamlsched import log

DEADLINE_SECONDS = 5.0
"""For all requests that are sent together."""
RETRY_PAUSES_SECONDS = (0.5, 1.0)
"""Before another try, after no answer or an error of the server (5xx)."""
MAX_THREADS = 16
SENT = ""
BAD_URL = "not a valid http or https URL (ASCII, without spaces, a user or a password)"
Item = TypeVar("Item")
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Request:
    """One request: a GET, or a POST with ``body``. Those of one ``stream`` are sent in
    their order.
    """

    variable: str
    url: str = field(repr=False)
    stream: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    error: str = SENT  # why it cannot be sent at all


def deliver(requests: Sequence[Request], seconds: float | None = None) -> None:
    """Send ``requests``, and log what could not be sent. Never raises, and returns within
    ``seconds``.

    By default they are ``DEADLINE_SECONDS``.
    """
    seconds = DEADLINE_SECONDS if seconds is None else seconds
    streams: dict[str, list[Request]] = {}
    for request in requests:
        streams.setdefault(request.stream, []).append(request)
    outcomes = send_streams(list(streams.values()), _send, time.monotonic() + seconds)
    for (variable, error), count in Counter(
        (request.variable, error) for request, error in outcomes
    ).items():
        if error != SENT:
            log.warning("monitor.failed", variable=variable, error=error, requests=count)


def send_streams(
    streams: Sequence[Sequence[Item]], send: Callable[[Item, float], str], deadline: float
) -> list[tuple[Item, str]]:
    """Send the items of each stream in their order, side by side, until ``deadline``; return each
    with its error.
    """
    # Daemon threads, for which the process does not wait at its end: the timeout of a socket
    # applies to each read, and a server that sends a byte now and then never exceeds it.
    seconds = deadline - time.monotonic()
    todo, answers = deque(enumerate(streams)), deque[tuple[tuple[int, int], str]]()

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                nth, stream = todo.popleft()
            except IndexError:
                return
            for place, item in enumerate(stream):
                answers.append(((nth, place), send(item, deadline)))

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(len(todo), MAX_THREADS))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answered, late = dict(list(answers)), f"no answer within {seconds:.2g} s"
    items = (
        ((nth, place), item)
        for nth, stream in enumerate(streams)
        for place, item in enumerate(stream)
    )
    return [(item, answered.get(key, late)) for key, item in items]


def is_valid_url(url: str) -> bool:
    """Return whether requests can be sent to ``url``."""
    if not re.fullmatch(r"https?://[!-?A-~]+", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or brackets
        return False


def _send(request: Request, deadline: float) -> str:
    """Send ``request``, with retries; return ``SENT``, or an error that contains no part of the
    URL.
    """
    if request.error:
        return request.error
    if not is_valid_url(request.url):
        return BAD_URL
    opener = build_opener(SameOriginRedirects)
    for pause in (*RETRY_PAUSES_SECONDS, None):
        error, may_retry = _send_once(opener, request, deadline)
        if error == SENT or not may_retry or pause is None or time.monotonic() + pause >= deadline:
            break
        time.sleep(pause)
    return error


def _send_once(opener: OpenerDirector, request: Request, deadline: float) -> tuple[str, bool]:
    """Send ``request``; return ``SENT`` or an error, and whether it may help to send it again."""
    try:
        headers = {"User-Agent": "yamlsched", **request.headers}
        prepared = HttpRequest(request.url, request.body, headers)
        with opener.open(prepared, timeout=max(0.1, deadline - time.monotonic())):
            return SENT, False
    except HTTPError as error:
        error.close()
        return f"HTTP {error.code}", error.code >= 500
    except ForeignRedirect:
        return "it redirects to another server", False
    except (OSError, ValueError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        return _describe(cause), isinstance(cause, OSError)


def _describe(cause: object) -> str:
    if isinstance(cause, ssl.SSLError):  # whose text may contain the name of the host
        return f"TLS: {(cause.reason or 'failed').lower().replace('_', ' ')}"
    return (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__


class ForeignRedirect(Exception):
    """The server redirects to another one: a secret is not passed on."""


class SameOriginRedirects(HTTPRedirectHandler):
    """Follows redirects of a GET to the same server only; from http to https also between their
    default ports.
    """

    def redirect_request(
        self, req: HttpRequest, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> HttpRequest | None:
        if req.get_method() != "GET":
            return None  # it would become a GET without its body
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        is_upgrade = (
            (old.scheme, new.scheme) == ("http", "https")
            and _has_default_port(old)
            and _has_default_port(new)
        )
        if old.hostname != new.hostname or (
            not is_upgrade and (old.scheme, old.port) != (new.scheme, new.port)
        ):
            raise ForeignRedirect
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _has_default_port(url: SplitResult) -> bool:
    return url.port in (None, DEFAULT_PORTS.get(url.scheme))
